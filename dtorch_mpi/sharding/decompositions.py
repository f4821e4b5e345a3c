"""Operators whose value on shards takes several operators.

Each function here has its operator's signature and gives its results; the operators it calls
are sharded one by one.
"""

import math

import torch
from torch.distributed.tensor import Partial, Shard

from dtorch_mpi.sharding import (
    decompositions_classes,
    decompositions_norm,
    decompositions_rows,
)
from dtorch_mpi.sharding.decompositions_reduce import DECOMPOSITIONS, MEAN_LOSSES
from dtorch_mpi.sharding.op_sharding import ShardedMeta

aten = torch.ops.aten
_MEAN, _SUM = 1, 2


def nll_loss_forward(self, target, weight, reduction, ignore_index):
    """The mean as sum over weight: shards may count different numbers of targets."""
    total, total_weight = aten.nll_loss_forward(self, target, weight, _SUM, ignore_index)
    return total / total_weight, total_weight


def nll_loss2d_forward(self, target, weight, reduction, ignore_index):
    total, total_weight = aten.nll_loss2d_forward(self, target, weight, _SUM, ignore_index)
    return total / total_weight, total_weight


def linalg_vector_norm(self, ord=2, dim=None, keepdim=False, *, dtype=None):
    """The root of the sum of powers: the sum is what shards can add up."""
    if ord == 0:
        dims = list(range(self.ndim)) if dim is None else dim
        return aten.sum.dim_IntList(self != 0, dims, keepdim).to(dtype or self.abs().dtype)
    if math.isinf(ord):
        size = self.abs() if dtype is None else self.abs().to(dtype)
        return (aten.amax if ord > 0 else aten.amin)(size, dim or [], keepdim)
    return aten.linalg__powsum(self, ord, dim, keepdim, dtype=dtype).pow(1.0 / ord)


def foreach_norm(self, ord=2, dtype=None):
    return [linalg_vector_norm(tensor, ord, dtype=dtype) for tensor in self]


# Also in src/capture/sharded_decompositions.cpp, which is what runs.
NATIVE = {nll_loss_forward, nll_loss2d_forward, linalg_vector_norm, foreach_norm}

_CLASSES = {
    aten.nll_loss_forward.default: decompositions_classes.nll_loss_forward,
    aten.nll_loss2d_forward.default: decompositions_classes.nll_loss_forward,
    aten.nll_loss_backward.default: decompositions_classes.nll_loss_backward,
    aten.nll_loss2d_backward.default: decompositions_classes.nll_loss_backward,
}
# Where their input stands among the arguments.
_LAYER_NORMS = {aten.native_layer_norm.default: 0, aten.native_layer_norm_backward.default: 1}
_MEANS = {
    aten.nll_loss_forward.default: nll_loss_forward,
    aten.nll_loss2d_forward.default: nll_loss2d_forward,
}


def decomposition_of(op, args: list, inputs: list[ShardedMeta]):
    """The function to call in place of ``op``, or None where it would not help."""
    if not any(isinstance(p, (Shard, Partial)) for given in inputs for p in given.placements):
        return None
    if any(given.meta.numel() == 0 for given in inputs):
        return None  # some of the operators that it would call refuse what this one takes
    if decompositions_rows.is_cut_by_rows(op, args):
        return decompositions_rows.embedding
    if op in _CLASSES:
        scores = args[1] if op._schema.arguments[0].name == "grad_output" else args[0]
        if Shard(min(scores.meta.ndim - 1, 1)) in scores.placements:
            return _CLASSES[op]
        return _MEANS[op] if op in _MEANS and args[3] == _MEAN else None
    if op is aten.linalg_vector_norm.default:
        return linalg_vector_norm
    if op is aten._foreach_norm.Scalar:
        return foreach_norm
    if op in MEAN_LOSSES:
        position, function = MEAN_LOSSES[op]
        reduction = args[position] if len(args) > position else _MEAN
        return function if reduction == _MEAN else None
    if op in _LAYER_NORMS:
        # A weight that is cut is gathered for less.
        given = args[_LAYER_NORMS[op]]
        first = given.meta.ndim - len(args[_LAYER_NORMS[op] + 1])
        cut = {p.dim for p in given.placements if isinstance(p, Shard)}
        if not any(d >= first and given.meta.shape[d] > 1 for d in cut):
            return None
    return DECOMPOSITIONS.get(op) or decompositions_norm.DECOMPOSITIONS.get(op)
