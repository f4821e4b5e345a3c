"""Trying a decision on the sizes that workers will have, before any worker does."""

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from dtorch_mpi import _sharding
from dtorch_mpi.sharding.layout import is_even, local_sizes
from dtorch_mpi.sharding.op_sharding import OpSharding, ShardedMeta
from dtorch_mpi.sharding.operator_facts import OperatorFacts


def check_local_shapes(
    op: OpOverload,
    facts: OperatorFacts,
    args: list,
    kwargs: dict,
    inputs: list[ShardedMeta],
    result: OpSharding,
    outputs: list[torch.Tensor | None],
    mesh_shape: tuple[int, ...],
) -> str | None:
    """Run the operator on meta tensors of local sizes; what is wrong, or None.

    Elementwise operators are trusted. The first and the last worker stand for all: between
    them sizes only fall.
    """
    if facts.is_pointwise:
        return None
    coordinates = [(0,) * len(mesh_shape)]
    layouts = [(given.meta, p) for given, p in zip(inputs, result.inputs, strict=True)]
    layouts += [(o, p) for o, p in zip(outputs, result.outputs, strict=True) if o is not None]
    if not all(is_even(meta.shape, mesh_shape, p) for meta, p in layouts):
        coordinates.append(tuple(count - 1 for count in mesh_shape))
    for coordinate in coordinates:
        wrong = _check(op, facts, args, kwargs, result, outputs, mesh_shape, coordinate)
        if wrong is not None:
            return wrong
    return None


def _check(op, facts, args, kwargs, result, outputs, mesh_shape, coordinate) -> str | None:
    wanted = iter(result.inputs)

    def local(value):
        if isinstance(value, ShardedMeta):
            sizes = local_sizes(value.meta.shape, mesh_shape, next(wanted), coordinate)
            strides = _sharding.local_strides(value.meta.stride(), sizes)
            return torch.empty_strided(sizes, strides, dtype=value.meta.dtype, device="meta")
        return [local(v) for v in value] if isinstance(value, list) else value

    expected = [
        None if output is None else local_sizes(output.shape, mesh_shape, placements, coordinate)
        for output, placements in zip(outputs, result.outputs, strict=True)
    ]
    arguments = [local(a) for a in args]
    named = {name: local(value) for name, value in kwargs.items()}
    if named.get("device") is not None:
        named["device"] = "meta"
    for position, output in result.local_sizes.items():
        arguments[position] = expected[output]
    for position, output in result.local_strides.items():
        arguments[position] = _sharding.local_strides(outputs[output].stride(), expected[output])
    try:
        made = op(*arguments, **named)
    except Exception as error:
        return f"the operator refuses the shards: {error}"
    if not op._schema.returns:
        return None
    given = [leaf for leaf in tree_leaves(made) if leaf is None or isinstance(leaf, torch.Tensor)]
    got = [None if leaf is None else list(leaf.shape) for leaf in given]
    if got != expected:
        return f"shards of sizes {expected} were expected, the operator gives {got}"
    return None
