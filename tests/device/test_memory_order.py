"""Tensors whose dims lie in memory in another order than they are named, and move."""

import pytest
import torch
from parity import seeded

import dtorch_mpi as dt
from dtorch_mpi import Partial, Replicate, Shard

PLACEMENTS = [Replicate(), Shard(0), Shard(1), Shard(2), Partial()]


@pytest.fixture(scope="module", autouse=True)
def three_workers():
    dt.shutdown()
    dt.init(workers=3)
    yield
    dt.shutdown()


def placed(placement):
    """A tensor of sizes (4, 5, 2) that lies in memory as (5, 4, 2)."""
    mesh = dt.init_device_mesh((3,))
    tensor = dt.distribute_tensor(seeded(5, 4, 2), mesh)
    return tensor.transpose(0, 1).redistribute(mesh, [placement])


@pytest.mark.parametrize("after", PLACEMENTS, ids=str)
@pytest.mark.parametrize("before", PLACEMENTS, ids=str)
def test_what_moves_keeps_its_order(before, after):
    expected = seeded(5, 4, 2).transpose(0, 1)
    moved = placed(before).redistribute(placements=[after])
    assert moved.stride() == expected.stride()
    torch.testing.assert_close(moved.to_torch(), expected)
    torch.testing.assert_close(moved.transpose(0, 1).view(20, 2).to_torch(), seeded(20, 2))


@pytest.mark.parametrize("before", PLACEMENTS, ids=str)
def test_reshape_to_the_same_sizes(before):
    assert torch.equal(
        placed(before).reshape(4, -1, 2).to_torch(), seeded(5, 4, 2).transpose(0, 1)
    )


def test_an_upload_keeps_its_order():
    mesh = dt.init_device_mesh((3,))
    tensor = seeded(5, 4, 2).transpose(0, 1)
    there = dt.distribute_tensor(tensor, mesh, [Shard(0)])
    assert torch.equal(there.transpose(0, 1).view(20, 2).to_torch(), seeded(20, 2))


def test_histc_counts_integers():
    numbers = torch.tensor([0, 2, 2, 3], device="dtorch")
    assert torch.histc(numbers, 4, 0, 3).tolist() == [1, 0, 2, 1]
