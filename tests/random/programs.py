"""Random calls, each on a tensor of (7, 6), and the layouts that they are tried on."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

import dtorch_mpi as dt

SIZE = (7, 6)


def generator():
    return torch.Generator("dtorch").manual_seed(9)


def seeded(make):
    torch.manual_seed(21)
    return make()


def read(value):
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return [read(item) for item in value] if isinstance(value, (tuple, list)) else value


# x: zeros, ones or probabilities of SIZE, float32; what comes back is compared bit by bit.
CALLS = {
    "uniform_": lambda x: x.uniform_(-2, 3),
    "normal_": lambda x: x.normal_(1, 2),
    "exponential_": lambda x: x.exponential_(2),
    "cauchy_": lambda x: x.cauchy_(1, 2),
    "geometric_": lambda x: x.geometric_(0.3),
    "log_normal_": lambda x: x.log_normal_(0.5, 0.25),
    "random_": lambda x: x.random_(),
    "random_.to": lambda x: x.random_(100),
    "random_.from": lambda x: x.random_(-3, 1000),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "bernoulli_.Tensor": lambda x: x.clone().bernoulli_(x),
    "bernoulli_.row": lambda x: x.clone().bernoulli_(x[0]),
    "bernoulli": lambda x: torch.bernoulli(x),
    "bernoulli.out": lambda x: torch.bernoulli(x, out=torch.empty_like(x)),
    "rand_like": lambda x: torch.rand_like(x),
    "rand_like.double": lambda x: torch.rand_like(x, dtype=torch.float64),
    "randn_like": lambda x: torch.randn_like(x),
    "randn_like.double": lambda x: torch.randn_like(x, dtype=torch.float64),
    "randn_like.bfloat16": lambda x: torch.randn_like(x, dtype=torch.bfloat16),
    "randn_like.half": lambda x: torch.randn_like(x, dtype=torch.half),
    "randn_like.complex": lambda x: torch.randn_like(x, dtype=torch.complex64),
    "rand_like.complex": lambda x: torch.rand_like(x, dtype=torch.complex64),
    "randint_like": lambda x: torch.randint_like(x, 5, 50, dtype=torch.int64),
    "randint_like.bool": lambda x: torch.randint_like(x, 0, 2, dtype=torch.bool),
    "normal.Tensor_float": lambda x: torch.normal(x, 2.0),
    "normal.float_Tensor": lambda x: torch.normal(1.0, x),
    "normal.Tensor_Tensor": lambda x: torch.normal(x, x + 1),
    "normal.row": lambda x: torch.normal(x, x[:1] + 1),
    "normal.out": lambda x: torch.normal(x, 2.0, out=torch.empty_like(x)),
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout.half": lambda x: F.dropout(x.half(), 0.4),
    "dropout_": lambda x: F.dropout(x, 0.4, inplace=True),
    "dropout.eval": lambda x: F.dropout(x, 0.4, training=False),
    "native_dropout": lambda x: torch.native_dropout(x, 0.4, True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.4, training=True),
    "dropout1d": lambda x: F.dropout1d(x.unsqueeze(0), 0.4),
    "rrelu": lambda x: F.rrelu(x - 0.5, 0.1, 0.3, training=True),
    "rrelu_": lambda x: F.rrelu_(x - 0.5, 0.1, 0.3, training=True),
    "multinomial": lambda x: torch.multinomial(x, 4),
    "multinomial.replacement": lambda x: torch.multinomial(x, 9, replacement=True),
    "multinomial.vector": lambda x: torch.multinomial(x[0], 3),
    "multinomial.out": lambda x: torch.multinomial(x, 2, out=torch.empty(0, dtype=torch.int64,
                                                                         device="dtorch")),
    "poisson": lambda x: torch.poisson(30 * x),
    "binomial": lambda x: torch.binomial(torch.full_like(x, 20), x),
    "gamma": lambda x: torch._standard_gamma(x + 0.5),
    "dirichlet": lambda x: torch._sample_dirichlet(x + 0.5),
    "trunc_normal_": lambda x: nn.init.trunc_normal_(x, std=0.5),
    "kaiming_uniform_": lambda x: nn.init.kaiming_uniform_(x),
    "kaiming_normal_": lambda x: nn.init.kaiming_normal_(x),
    "xavier_uniform_": lambda x: nn.init.xavier_uniform_(x),
    "generator": lambda x: x.normal_(generator=generator()),
    "through a transposed view": lambda x: (x.t().uniform_(), x)[1],
    "two in a row": lambda x: torch.rand_like(x) + torch.rand_like(x),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, hard=True),
}

# Factories give replicated tensors.
FACTORIES = {
    "rand": lambda: torch.rand(SIZE, device="dtorch"),
    "randn": lambda: torch.randn(SIZE, device="dtorch"),
    "randn.generator": lambda: torch.randn(SIZE, device="dtorch", generator=generator()),
    "randint": lambda: torch.randint(3, 30, SIZE, device="dtorch"),
    "randperm": lambda: torch.randperm(5000, device="dtorch"),
    "randperm.int32": lambda: torch.randperm(50, device="dtorch", dtype=torch.int32),
    "normal": lambda: torch.normal(2.0, 3.0, SIZE, device="dtorch"),
}

ONE_AXIS = [Shard(0), Shard(1), Replicate(), Partial("sum")]
TWO_AXES = [
    (Shard(0), Shard(1)), (Shard(1), Shard(0)), (Shard(0), Shard(0)), (Replicate(), Shard(1)),
    (Partial("sum"), Shard(0)),
]  # fmt: skip
LAYOUTS = [((count,), (placement,)) for count in range(1, 5) for placement in ONE_AXIS]
LAYOUTS += [((2, 2), placements) for placements in TWO_AXES]


def probabilities():
    return torch.linspace(0.02, 0.98, 42).view(SIZE)


def laid(tensor, mesh, placements):
    """The tensor on the mesh; partial sums come from a redistribution."""
    whole = dt.distribute_tensor(tensor.clone(), mesh, [Replicate()] * mesh.ndim)
    return whole.redistribute(mesh, placements)
