"""Running an operator as the workers would, one after the other, without any communication.

A distributed argument is a ``Placed``: the full tensor and how it lies. What each worker
holds after the wanted redistribution is cut from the full tensor; the results of all workers
are put together and compared with the operator's own.
"""

import itertools
from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Shard
from torch.utils._pytree import tree_leaves

from dtorch_mpi import _sharding
from dtorch_mpi.sharding.op_sharding import OpSharding, ShardedMeta
from dtorch_mpi.sharding.operator_facts import facts_of
from dtorch_mpi.sharding.placements import pack
from dtorch_mpi.sharding.propagator import propagate


@dataclass
class Placed:
    full: torch.Tensor
    placements: tuple


def make_mesh(*shape):
    count = torch.Size(shape).numel()
    names = ("dp", "tp", "pp")[: len(shape)]
    ranks = torch.arange(count).view(shape)
    return DeviceMesh("cpu", ranks, mesh_dim_names=names, _init_backend=False, _rank=0)


def convert(value, function):
    if isinstance(value, Placed):
        return function(value)
    if isinstance(value, (list, tuple)):
        return [convert(v, function) for v in value]
    return value


def to_meta(full):
    return torch.empty_strided(full.shape, full.stride(), dtype=full.dtype, device="meta")


def sharding_of(op, args, kwargs, mesh, outputs):
    def sharded(placed):
        return ShardedMeta(to_meta(placed.full), mesh, tuple(placed.placements))

    metas = [None if o is None else to_meta(o) for o in outputs]
    kwargs = {k: convert(v, sharded) for k, v in kwargs.items()}
    return propagate(op, tuple(convert(a, sharded) for a in args), kwargs, metas)


def share(full, mesh_shape, placements, coordinate):
    """A worker's part. Sums are split unevenly, so that only linear operators carry them."""
    local = _sharding.local_slice(
        full, mesh_shape, pack(p if isinstance(p, Shard) else Partial("max") for p in placements),
        coordinate,
    )
    for length, placement, index in zip(mesh_shape, placements, coordinate, strict=True):
        if placement == Partial("max"):
            local = local - index
        elif isinstance(placement, Partial) and placement.reduce_op in ("sum", "avg"):
            part = 1.5 if index == 0 else -0.5 / (length - 1)
            local = local * part if length > 1 else local
            if placement.reduce_op == "avg":
                local = local * length
    dense = torch.empty_strided(
        local.shape, _sharding.local_strides(full.stride(), local.shape), dtype=full.dtype
    )
    return dense.copy_(local)


def check(op, args, kwargs=None, mesh=None, compare=None) -> OpSharding:
    """Assert that shards give what the whole gives; the decision, for more assertions.

    ``compare`` picks the outputs to compare (default: all).
    """
    kwargs = kwargs or {}
    placed = [v for v in tree_leaves([*args, *kwargs.values()]) if isinstance(v, Placed)]
    after = {id(p): p.full.clone() for p in placed}
    expected = op(
        *(convert(a, lambda p: after[id(p)]) for a in args),
        **{k: convert(v, lambda p: after[id(p)]) for k, v in kwargs.items()},
    )
    expected = tree_leaves(expected) if op._schema.returns else []
    expected = [e for e in expected if e is None or isinstance(e, torch.Tensor)]
    decision = sharding_of(op, args, kwargs, mesh, expected)
    assert len(decision.inputs) == len(placed)
    assert len(decision.outputs) == len(expected)

    shards, written = [], []
    for coordinate in itertools.product(*(range(n) for n in mesh.shape)):
        wanted = iter(decision.inputs)
        locals_of = []

        def local(given, wanted=wanted, locals_of=locals_of, coordinate=coordinate):
            locals_of.append(share(given.full, mesh.shape, next(wanted), coordinate))
            return locals_of[-1]

        arguments = [convert(a, local) for a in args]
        named = {k: convert(v, local) for k, v in kwargs.items()}
        for position, output in decision.local_sizes.items():
            arguments[position] = _sharding.local_sizes(
                expected[output].shape, mesh.shape, pack(decision.outputs[output]), coordinate
            )
        for position, output in decision.local_strides.items():
            arguments[position] = _sharding.local_strides(
                expected[output].stride(), arguments[decision_size_position(op)]
            )
        made = tree_leaves(op(*arguments, **named))
        shards.append([m for m in made if m is None or isinstance(m, torch.Tensor)])
        written.append(locals_of)

    def whole(pieces, sizes, placements):
        return _sharding.assemble(pieces, sizes, mesh.shape, pack(placements))

    for index, result in enumerate(expected):
        if result is None or (compare is not None and index not in compare):
            continue
        got = whole([s[index] for s in shards], result.shape, decision.outputs[index])
        torch.testing.assert_close(
            got, result, equal_nan=True, msg=lambda m: f"{op}: {decision}\n{m}"
        )
    for index, given in enumerate(placed):
        if torch.equal(after[id(given)], given.full):
            continue
        got = whole([w[index] for w in written], given.full.shape, decision.inputs[index])
        torch.testing.assert_close(got, after[id(given)], msg=lambda m: f"{op}: {decision}\n{m}")
        back = decision.restore.get(index, tuple(decision.inputs[index]))
        assert back == tuple(given.placements), f"{op} changes its input's layout: {decision}"
    return decision


def decision_size_position(op):
    return facts_of(op).size_position
