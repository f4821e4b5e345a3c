"""dt.zeros, dt.randn and the others: global sizes, and each worker makes its own part."""

import pytest
import torch
from torch.distributed.tensor import Partial

import dtorch_mpi as dt

MAKERS = {
    "empty": (dt.empty, None),
    "zeros": (dt.zeros, torch.zeros),
    "ones": (dt.ones, torch.ones),
    "rand": (dt.rand, None),
    "randn": (dt.randn, None),
}


@pytest.fixture
def mesh(with_workers):
    with_workers(4)
    return dt.init_device_mesh((2, 2))


@pytest.mark.parametrize("name", MAKERS)
def test_sizes_and_placements(name, mesh):
    make, oracle = MAKERS[name]
    placements = [dt.Shard(0), dt.Shard(1)]
    for size in ((5, 6), ((5, 6),), ([5, 6],), (torch.Size((5, 6)),)):
        made = make(*size, mesh=mesh, placements=placements)
        assert made.shape == (5, 6) and made.dtype == torch.get_default_dtype()
        assert list(made.placements) == placements
        assert [tuple(part.shape) for part in dt.local_shards(made)] == [(3, 3), (3, 3), (2, 3),
                                                                        (2, 3)]
        if oracle is not None:
            assert torch.equal(made.cpu(), oracle(5, 6))
    made = make(3, dtype=torch.float64, requires_grad=True)
    assert made.dtype == torch.float64 and made.requires_grad and made.device_mesh is None


def test_full_and_randint(mesh):
    for value, dtype in ((7, torch.int64), (0.5, torch.float32), (True, torch.bool)):
        made = dt.full((3, 2), value, mesh=mesh, placements=[dt.Shard(0), dt.Replicate()])
        assert made.dtype == dtype and torch.equal(made.cpu(), torch.full((3, 2), value))
    made = dt.randint(5, 9, (100,), mesh=mesh, placements=[dt.Shard(0), dt.Shard(0)])
    assert made.dtype == torch.int64 and sorted(set(made.tolist())) == [5, 6, 7, 8]
    assert dt.randint(2, (50,)).max().item() == 1


def test_a_generator_of_ones_own(mesh):
    whole, parts = (
        dt.randn(9, 4, generator=torch.Generator("dtorch").manual_seed(3), mesh=mesh,
                 placements=placements).cpu()
        for placements in ([dt.Replicate()] * 2, [dt.Shard(0), dt.Shard(1)])
    )
    assert torch.equal(whole, parts)


def test_errors(mesh):
    with pytest.raises(ValueError, match="without a mesh"):
        dt.zeros(3, placements=[dt.Shard(0)])
    with pytest.raises(ValueError, match="partial"):
        dt.zeros(3, mesh=mesh, placements=[Partial("sum"), dt.Replicate()])
    with pytest.raises(ValueError, match="dim"):
        dt.zeros(3, mesh=mesh, placements=[dt.Shard(1), dt.Replicate()])
    with pytest.raises(TypeError, match="full"):
        dt.full(3, 4)


def test_a_part_takes_a_part_of_the_memory(mesh):
    made = dt.randn(4_000_000, mesh=mesh, placements=[dt.Shard(0), dt.Shard(0)])
    held = max(figures["bytes"] for figures in torch.dtorch.worker_memory())
    assert 4_000_000 <= held < 1.05 * 4_000_000
    del made
