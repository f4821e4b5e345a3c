"""Capture's question, answered: how does a call with sharded inputs run?

Called once for each new key of the capture cache, never on a hit.
"""

import torch
from torch.distributed.tensor import Replicate, Shard

from ..mesh import is_whole, mesh_number, sharding_number, sharding_of
from .decompositions import NATIVE
from .decompositions_norm import MEASURED
from .fallback import is_gathered
from .fallback_log import note_fallback
from .op_sharding import OpSharding, ShardedMeta
from .operator_facts import facts_of

aten = torch.ops.aten
# Operators whose meta kernels give the right sizes, though not the right strides or dtypes.
SHAPED_RIGHT = {
    aten._fft_c2c.default, aten._fft_r2c.default, aten._fft_c2r.default,
    aten._linalg_svd.default, aten.linalg_eig.default, aten._linalg_eigh.default,
    aten.linalg_qr.default,
}


def shard(name, overload, values, outputs, measured):
    """(moves, output shardings, local sizes and strides, global sizes) for one call.

    Or a function that gives the operator's results by other operators; its name, where capture
    has that function.

    values: the arguments in schema order, each distributed tensor as (meta tensor, sharding
    number). outputs: meta tensors, lists flattened. measured: their metadata is not known, so
    the call runs on replicated inputs, or gives global sizes. moves: (input, from, to, restore)
    by number.
    """
    from .decompositions_rows import rows_decomposition
    from .propagator import propagate

    namespace, _, base = name.partition("::")
    op = getattr(getattr(getattr(torch.ops, namespace), base), overload)
    inputs = []
    mesh = _common_mesh(name, values)
    args = _with_metas(values, mesh, inputs)
    num_positional = sum(not argument.kwarg_only for argument in op._schema.arguments)
    keywords = {
        argument.name: value
        for argument, value in zip(
            op._schema.arguments[num_positional:], args[num_positional:], strict=True
        )
    }
    if not is_whole(mesh) and any(inputs[i][0] == 0 for i in _written(op, values, inputs)):
        raise ValueError(
            f"{name} writes to a tensor that every worker holds, from one that only {mesh} holds: "
            "the others would keep the old value. Move one of them: x.to_mesh(mesh)"
        )
    sizes = []
    plan = None
    if measured and op in MEASURED and any(
        isinstance(p, Shard) for _, meta in inputs for p in meta.placements
    ):
        return MEASURED[op]
    by_rows = rows_decomposition(op, args)
    if by_rows is not None:
        return by_rows
    if measured and op in SHAPED_RIGHT:
        plan, sizes = _measured_plan(op, args, num_positional, keywords, mesh)
    if plan is not None:
        pass
    elif measured:
        whole = (Replicate(),) * mesh.ndim
        plan = OpSharding(
            inputs=[whole] * len(inputs), outputs=[whole] * len(op._schema.returns),
            restore=_written(op, values, inputs),
            fallback=is_gathered([meta for _, meta in inputs]),
        )
    else:
        plan = propagate(op, tuple(args[:num_positional]), keywords, outputs, mesh)
    if plan.decomposition is not None:
        return name if plan.decomposition in NATIVE else plan.decomposition
    if plan.fallback:
        note_fallback(name, tuple(str(meta.placements) for _, meta in inputs))
    moves = []
    for index, (number, meta) in enumerate(inputs):
        source = number or sharding_number(mesh, meta.placements)
        target = sharding_number(mesh, plan.inputs[index])
        if source != target and _differs(mesh, meta.placements, plan.inputs[index]):
            moves.append((index, source, target, index in plan.restore))
    shardings = [0 if lies is None else sharding_number(mesh, lies) for lies in plan.outputs]
    local_sizes = sorted(plan.local_sizes.items())
    return moves, shardings, local_sizes, sorted(plan.local_strides.items()), sizes


def _measured_plan(op, args, num_positional, keywords, mesh):
    """(plan, sizes of the outputs) where shards serve, else (None, [])."""
    from .propagator import propagate

    def whole(value):
        if isinstance(value, list):
            return [whole(element) for element in value]
        return value.meta if isinstance(value, ShardedMeta) else value

    made = op(
        *(whole(value) for value in args[:num_positional]),
        **{name: whole(value) for name, value in keywords.items()},
    )
    outputs = list(made) if isinstance(made, tuple) else [made]
    plan = propagate(op, tuple(args[:num_positional]), keywords, outputs, mesh)
    if plan.decomposition is not None:
        return plan, []
    if plan.fallback or any(meta.numel() == 0 for meta in outputs):
        return None, []
    return plan, [list(meta.shape) for meta in outputs]


def _differs(mesh, before, after):
    """Whether any worker's part changes: an axis of one worker holds the whole in any way."""
    return any(
        old != new and size > 1 for old, new, size in zip(before, after, mesh.shape, strict=True)
    )


def _written(op, values, inputs):
    """{input: placements} of the inputs that the operator writes to, said by its schema or not."""
    facts = facts_of(op)
    names = {facts.names[position] for position in facts.written}
    written, index = {}, 0
    for argument, value in zip(op._schema.arguments, values, strict=True):
        for element in value if isinstance(value, list) else [value]:
            if not isinstance(element, tuple):
                continue
            if argument.name in names:
                written[index] = inputs[index][1].placements
            index += 1
    return written


def _common_mesh(name, values):
    meshes = {}
    for value in values:
        for element in value if isinstance(value, list) else [value]:
            if isinstance(element, tuple) and element[1]:
                mesh, _ = sharding_of(element[1])
                meshes[mesh_number(mesh)] = mesh
    if len(meshes) > 1:
        found = ", ".join(str(mesh) for mesh in meshes.values())
        raise ValueError(
            f"{name} got tensors on different meshes: {found}. Move them to one with "
            "x.to_mesh(mesh, placements)"
        )
    return next(iter(meshes.values()))


def with_metas(name, values):
    """(the inputs' mesh, the arguments with a ShardedMeta for each distributed tensor)."""
    mesh = _common_mesh(name, values)
    return mesh, _with_metas(values, mesh, [])


def _with_metas(values, mesh, inputs):
    """The arguments with a ShardedMeta for each pair; they are also appended to `inputs`.

    A tensor on no mesh is replicated on all workers, and so joins any mesh of all workers.
    """
    replaced = []
    for value in values:
        if isinstance(value, list):
            replaced.append(_with_metas(value, mesh, inputs))
        elif isinstance(value, tuple):
            meta, number = value
            placements = sharding_of(number)[1] if number else (Replicate(),) * mesh.ndim
            replaced.append(ShardedMeta(meta, mesh, placements))
            inputs.append((number, replaced[-1]))
        else:
            replaced.append(value)
    return replaced
