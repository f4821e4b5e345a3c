"""Batches that the workers read: the same rows on every mesh, as plain h5py reads them."""

import h5py
import numpy as np
import pytest
import torch

import dtorch_mpi as dt

MESHES = {(1,): [dt.Shard(0)], (3,): [dt.Shard(0)], (2, 2): [dt.Shard(0), dt.Shard(1)],
          (4,): [dt.Replicate()]}  # fmt: skip
NUM_ROWS = 103


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["rows"] = np.arange(NUM_ROWS)[:, None] * 10 + np.arange(5)
    return tmp_path / "rows.h5"


@pytest.fixture(params=MESHES, ids=str)
def placed(request):
    """The mesh and placements of batches."""
    dt.shutdown()
    dt.init(workers=torch.Size(request.param).numel())
    yield {"mesh": dt.init_device_mesh(request.param), "placements": MESHES[request.param]}
    dt.shutdown()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_every_mesh_reads_the_same(path, placed, prefetch):
    dataset = dt.data.H5Dataset(path, "rows")
    given = {"seed": 5, "epochs": 2, "drop_last": False}
    expected = [batch.clone() for batch in dataset.batches(10, device="cpu", **given)]
    batches = dataset.batches(10, prefetch=prefetch, **placed, **given)
    read = list(batches)
    assert all(batch.placements == tuple(placed["placements"]) for batch in read)
    assert [batch.to_torch().tolist() for batch in read] == [e.tolist() for e in expected]
    # Two at a time, and one that is left.
    pairs = zip(batches, dataset.batches(10, **placed, **given), strict=True)
    for (left, right), value in zip(pairs, expected, strict=True):
        assert torch.equal(left.to_torch(), value)
        assert torch.equal(right.to_torch(), value)
    for batch in batches:
        assert torch.equal(batch.to_torch(), expected[0])
        break


def test_a_checkpoint_holds_which_row_comes_next(path, placed, tmp_path):
    dataset = dt.data.H5Dataset(path, "rows")
    batches = dataset.batches(10, seed=5, epochs=2, **placed)
    whole = [batch.to_torch().tolist() for batch in batches]
    for number, batch in enumerate(batches):
        assert batch.to_torch().tolist() == whole[number]
        if number == 12:
            dt.checkpoint.save(tmp_path / "saved", {"data": batches})
            break
    again = dataset.batches(10, seed=5, epochs=2, **placed)
    dt.checkpoint.load(tmp_path / "saved", {"data": again})
    assert [batch.to_torch().tolist() for batch in again] == whole[13:]


def test_a_row_that_is_gone_is_told_at_its_batch(path, placed):
    loop = iter(dt.data.H5Dataset(path, "rows").batches(10, seed=5, **placed))
    next(loop).to_torch()
    with h5py.File(path.with_name("new.h5"), "w") as file:
        file["rows"] = np.zeros((3, 5), dtype=int)
    path.with_name("new.h5").replace(path)
    with pytest.raises(dt.WorkerError, match="was the file replaced while it was in use"):
        for batch in loop:
            batch.to_torch()
