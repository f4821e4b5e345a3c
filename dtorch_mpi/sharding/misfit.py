"""Choices that PyTorch's rules offer although running the operator so would give wrong numbers.

Each was found by comparing results, with the torch version named or with all of them.
"""

import torch
from torch._ops import OpOverload
from torch.distributed.tensor import Partial, Placement, Shard

from dtorch_mpi.sharding.layout import local_size_range
from dtorch_mpi.sharding.op_sharding import Placements, ShardedMeta
from dtorch_mpi.sharding.selection import Call, Choice

aten = torch.ops.aten

_INDEX_PUT = {
    aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default,
    aten._unsafe_index_put.default,
}
_SQUEEZE = {
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
    aten.squeeze_.default, aten.squeeze_.dim, aten.squeeze_.dims,
}
# A fill of each addend is no fill of their sum, and a sum of reinterpreted bits means nothing.
_NOT_BEFORE_REDUCING = {aten.fill_.Scalar, aten.view.dtype}
# With 2.11 the largest local index is taken for the index of the largest value.
_INDICES = {aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default}
# With 2.11 a divisor that is not reduced yet is divided by.
_DIVISIONS = {aten.div.Tensor, aten.div_.Tensor}


def misfit(op: OpOverload, args: list, call: Call, choice: Choice) -> str | None:
    """Why a choice would run the operator on the wrong local arguments, if it would."""
    inputs, outputs = choice.inputs, choice.outputs
    if op in _SQUEEZE and 0 in call.inputs[0].meta.shape and _has(Shard, inputs):
        return "the rule drops a dim of size 0 as it does those of size 1"
    if op in _SQUEEZE and _squeezes_shards(args, call, choice):
        return "a sharded dim has one row on some worker, and squeeze would drop it"
    if op is aten.native_group_norm.default and _has(Shard, inputs):
        return "its sizes are arguments"
    if op in _NOT_BEFORE_REDUCING and _has(Partial, inputs):
        return "its input has to be reduced first"
    if op is aten.gather.default and _cuts_unlike_sizes(args[1], call, choice):
        return "the index is shorter than the input in a sharded dim: their shards do not match"
    if op in _INDICES and _has(Partial, outputs[-1:]):
        return "indices within shards are no indices of the whole"
    if op in _DIVISIONS and isinstance(args[1], ShardedMeta) and _has(Partial, inputs[-1:]):
        return "its divisor has to be reduced first"
    if op in _INDEX_PUT and _has_mask(args) and _has((Shard, Partial), inputs):
        return "a mask takes the place of as many dims as it has, which the rule does not see"
    return None


def _has(kind: type[Placement] | tuple[type, ...], tensors: list[Placements | None]) -> bool:
    return any(isinstance(p, kind) for placements in tensors for p in placements or ())


def _cuts_unlike_sizes(dim: int, call: Call, choice: Choice) -> bool:
    source, index = (given.meta for given in call.inputs)
    return any(
        isinstance(p, Shard)
        and p.dim != dim % source.ndim
        and source.shape[p.dim] != index.shape[p.dim]
        for p in choice.inputs[1]
    )


def _has_mask(args: list) -> bool:
    return any(
        isinstance(index, ShardedMeta) and index.meta.dtype in (torch.bool, torch.uint8)
        for index in args[1]
    )


def _squeezes_shards(args: list, call: Call, choice: Choice) -> bool:
    meta = call.inputs[0].meta
    dims = args[1] if len(args) > 1 else range(meta.ndim)
    dims = {d % meta.ndim for d in (dims if isinstance(dims, (list, range)) else [dims])}
    for dim in dims:
        counts = tuple(
            n
            for n, p in zip(call.mesh.shape, choice.inputs[0], strict=True)
            if isinstance(p, Shard) and p.dim == dim
        )
        size = meta.shape[dim]
        low, high = local_size_range(size, counts)
        if counts and size > 1 and low <= 1 <= high:
            return True
    return False
