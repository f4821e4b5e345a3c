"""Rules of random operators: workers draw by global element, so any part can be made alone."""

import torch
from torch.distributed.tensor import Replicate, Shard

from dtorch_mpi.sharding.op_sharding import ShardedMeta
from dtorch_mpi.sharding.rules import OWN_RULES, OwnRule
from dtorch_mpi.sharding.selection import AxisRule

aten = torch.ops.aten


def _by_element(args, kwargs, outputs):
    """Every output element takes the inputs' elements at its place, broadcast ones too."""
    inputs = [v for v in (*args, *kwargs.values()) if isinstance(v, ShardedMeta)]
    return [_cut(inputs, outputs, dim) for dim in range(outputs[0].ndim)]


def _by_row(args, kwargs, outputs):
    """The same for all dims but the last, whose elements depend on each other."""
    return _by_element(args, kwargs, outputs)[:-1]


def _cut(inputs, outputs, dim):
    wanted = []
    for given in inputs:
        own = dim - (outputs[0].ndim - given.meta.ndim)
        is_cut = own >= 0 and (given.meta.shape[own] != 1 or outputs[0].shape[dim] == 1)
        wanted.append(Shard(own) if is_cut else Replicate())
    return AxisRule((Shard(dim),) * len(outputs), tuple(wanted))


_BY_ELEMENT = {
    aten.uniform_.default, aten.normal_.default, aten.random_.default, aten.random_.to,
    getattr(aten.random_, "from"), aten.cauchy_.default, aten.log_normal_.default,
    aten.geometric_.default, aten.exponential_.default, aten.bernoulli_.float,
    aten.bernoulli_.Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor,
    aten.normal.Tensor_Tensor, aten.poisson.default, aten._standard_gamma.default,
    aten.binomial.default, aten.native_dropout.default, aten.rrelu_with_noise.default,
    aten.rrelu_with_noise_.default,
    # Their gradients, which PyTorch has no rules for either.
    aten.rrelu_with_noise_backward.default, aten._standard_gamma_grad.default,
    aten._dirichlet_grad.default,
}  # fmt: skip
_BY_ROW = {aten.multinomial.default, aten._sample_dirichlet.default}

OWN_RULES.update(dict.fromkeys(_BY_ELEMENT, OwnRule(_by_element, empty=True)))
OWN_RULES.update(dict.fromkeys(_BY_ROW, OwnRule(_by_row, empty=True)))
