"""torch.func over sharded tensors."""

import logging

import pytest
import torch
from placing import placed
from torch.func import grad, hessian, jacrev, jvp, vmap

import dtorch_mpi as dt
from dtorch_mpi import Partial, Replicate, Shard

LAYOUTS = [[Shard(0), Partial()], [Shard(1), Shard(0)], [Replicate(), Shard(0)], [Partial()] * 2]
TRANSFORMED = {
    "vmap": lambda x: vmap(lambda row: row.cumsum(0) * row.sum())(x),
    "vmap over columns": lambda x: vmap(lambda c: c.softmax(0), in_dims=1, out_dims=1)(x),
    "grad": lambda x: grad(lambda y: (y**3).sum())(x),
    "jacrev": lambda x: jacrev(lambda y: y.sin().sum(0))(x),
    # Asks whether a tangent has its tensor's sizes: an operator that returns no tensor.
    "jvp": lambda x: jvp(lambda y: y * y, (x,), (x + 1,)),
    "hessian": lambda x: hessian(lambda y: (y**3).sum())(x[0]),
}


@pytest.mark.parametrize("placements", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms(name, placements, mesh):
    plain = torch.linspace(-1, 1, 30, dtype=torch.float64).view(6, 5)
    expected = TRANSFORMED[name](plain)
    found = TRANSFORMED[name](placed(plain, mesh, placements))
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = found if isinstance(found, tuple) else (found,)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other.cpu(), one)


def test_nothing_is_logged_of_sizes_that_are_not_understood(mesh, caplog):
    """Of operators whose meta kernels can't take symbols PyTorch logs a whole traceback."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addHandler(caplog.handler)
    for length in (3, 4, 5, 6):
        x = placed(torch.rand(length, 3, dtype=torch.float64), mesh, [Shard(0), Replicate()])
        torch.linalg.pinv(x)
        torch.diagonal_copy(x, out=x.new_empty(3))
    dt.sync()
    log.removeHandler(caplog.handler)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
