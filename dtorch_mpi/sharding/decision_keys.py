"""What a sharding decision depends on: calls with one key are decided once.

A key does not name sizes, so that a longer sequence or another batch is no new call.
"""

import math

import torch
from torch._ops import OpOverload
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from dtorch_mpi.sharding import torch_rules
from dtorch_mpi.sharding.layout import capped, is_even, size_class
from dtorch_mpi.sharding.op_sharding import ShardedMeta
from dtorch_mpi.sharding.operator_facts import OperatorFacts
from dtorch_mpi.sharding.own_rules import OWN_RULES

aten = torch.ops.aten
# Their rules look at dims and not at sizes; that of means at whether cuts are even.
_LOOK_AT_DIMS = {
    aten.transpose.int, aten.t.default, aten.permute.default, aten.unsqueeze.default,
    aten.alias.default, aten.detach.default,
    aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim,
    aten.amax.default, aten.amin.default,
}


def decision_key(
    op: OpOverload, facts: OperatorFacts, args: list, kwargs: dict, outputs: list,
    mesh: DeviceMesh, near: bool,
) -> tuple:
    """The key of a call. ``near``: of a decision that leaves every input where it lies.

    Such a decision is the same whatever the sizes of the dims that are not cut. Another one
    weighs where they could be cut.
    """
    # Distinct meshes of one shape have the same rules and costs.
    shape = mesh.shape
    if op in torch_rules.GROUPING_DIMS:
        groups = _view_groups(args, shape, near)
        if groups is not None:
            return op, shape, near, args[0].placements, args[0].meta.dtype, groups
    exact = _reads_sizes(op)

    def part(value, is_scalar):
        if isinstance(value, ShardedMeta):
            sizes = value.meta.shape
            if not exact:
                cut = _cut_dims(value) if near else range(len(sizes))
                sizes = tuple(
                    size_class(size, shape) if dim in cut else capped(size)
                    for dim, size in enumerate(sizes)
                )
            return value.placements, value.meta.dtype, sizes
        if isinstance(value, (list, tuple)):
            return tuple(part(v, is_scalar) for v in value)
        if isinstance(value, torch.Tensor) or is_scalar and type(value) in (int, float):
            return float
        return value

    own = OWN_RULES.get(op)
    shown = own.key(args) if own is not None and own.key is not None else args
    scalars = facts.is_scalar if shown is args else (False,) * len(shown)
    named = ((k, part(v, facts.is_scalar[facts.names.index(k)])) for k, v in kwargs.items())
    # How many parts a tensor is split into follows from its size.
    made = tuple(None if output is None else output.ndim for output in outputs)
    key = op, shape, near, tuple(map(part, shown, scalars)), tuple(named), made
    return key if own is None or not own.compares else (*key, _equal_sizes(args, kwargs))


def _cut_dims(value: ShardedMeta) -> set[int]:
    return {p.dim for p in value.placements if isinstance(p, Shard)}


def _reads_sizes(op: OpOverload) -> bool:
    if op in OWN_RULES or op in _LOOK_AT_DIMS or torch.Tag.pointwise in op.tags:
        return False
    return torch_rules.reads_sizes(op)


def _equal_sizes(args: list, kwargs: dict) -> tuple[int, ...]:
    """For each size of the inputs, which was the first like it."""
    sizes = [
        size
        for value in (*args, *kwargs.values())
        if isinstance(value, ShardedMeta)
        for size in value.meta.shape
    ]
    return tuple(map(sizes.index, sizes))


def _view_groups(args: list, mesh_shape: tuple[int, ...], near: bool) -> tuple | None:
    """Which dims of a view are joined and split into which, by classes of sizes.

    None where sizes themselves matter: of an input cut unevenly, the pieces of what its dims
    are joined to may or may not be those of the joined dim.
    """
    given = args[0]
    before, after = given.meta.shape, list(args[1])
    if 0 in before or not is_even(before, mesh_shape, given.placements):
        return None
    if any(size == -1 for size in after):
        place = next(i for i, size in enumerate(after) if size == -1)
        after[place] = given.meta.numel() // -math.prod(after)
    cut = _cut_dims(given)
    groups, read, made = [], 0, 0
    while read < len(before) or made < len(after):
        first_read, first_made = read, made
        left = right = 1
        while left != right or read == first_read and made == first_made:
            if read < len(before) and (left <= right or made == len(after)):
                left, read = left * before[read], read + 1
            else:
                right, made = right * after[made], made + 1
        is_whole = near and cut.isdisjoint(range(first_read, read))
        groups.append(tuple(
            _group_classes(sizes, mesh_shape, is_whole, near)
            for sizes in (before[first_read:read], after[first_made:made])
        ))
    return tuple(groups)


def _group_classes(sizes, mesh_shape: tuple[int, ...], is_whole: bool, near: bool) -> tuple:
    # Of joined dims the first that is longer than 1 may be cut, of split ones too.
    first = next((place for place, size in enumerate(sizes) if size > 1), 0)
    return tuple(
        capped(size) if is_whole or near and place > first else size_class(size, mesh_shape)
        for place, size in enumerate(sizes)
    )
