"""Operators whose value on shards takes several operators.

Each function here has its operator's signature and gives its results; the operators it calls
are sharded one by one.
"""

import math

import torch
from torch.distributed.tensor import Partial, Shard

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
    return aten.linalg__powsum(self, ord, dim, keepdim, dtype=dtype).pow(1.0 / ord)


def foreach_norm(self, ord=2, dtype=None):
    return [linalg_vector_norm(tensor, ord, dtype=dtype) for tensor in self]


def decomposition_of(op, args: list, inputs: list[ShardedMeta]):
    """The function to call in place of ``op``, or None where it would not help."""
    if not any(isinstance(p, (Shard, Partial)) for given in inputs for p in given.placements):
        return None
    if op in (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default):
        if args[3] != _MEAN:
            return None
        is_2d = op is aten.nll_loss2d_forward.default
        return nll_loss2d_forward if is_2d else nll_loss_forward
    if op in (aten.linalg_vector_norm.default, aten._foreach_norm.Scalar):
        ord = args[1] if len(args) > 1 else 2
        if ord == 0 or math.isinf(ord):
            return None
        return foreach_norm if op is aten._foreach_norm.Scalar else linalg_vector_norm
    return None
