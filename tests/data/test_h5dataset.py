"""dtorch_mpi.data in plain PyTorch; h5py's own reading is the oracle."""

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch

import dtorch_mpi
from dtorch_mpi.data import H5Dataset, epoch_order, read_rows

NUM_ROWS = 50


def write(path, first=0):
    """Write rows that tell their own number: row r is (r, r + 1, r + 2), counted from `first`."""
    rows = np.arange(first, first + NUM_ROWS)[:, None] + np.arange(3)
    with h5py.File(path, "w") as file:
        file["rows"] = rows.astype(np.uint8)
        file["halves"] = rows.astype(">f4") / 2
        file["words"] = np.array([b"a", b"b"])
        file["nothing"] = np.empty((0, 3))
        file["one"] = 1.0
        file.create_group("group")
    return str(path)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "rows.h5")


def numbers(batches):
    """The row numbers of each batch."""
    return [batch[:, 0].tolist() for batch in batches]


def test_read_rows_equals_h5py_in_any_order_with_repeats(path):
    rows = [7, 3, 3, 49, 0, 7]
    read = read_rows(path, "rows", rows, torch.int64)
    with h5py.File(path) as file:
        stored = file["rows"][:]
    assert read.dtype == torch.int64
    assert torch.equal(read, torch.from_numpy(stored[rows].astype(np.int64)))
    assert read_rows(path, "rows", [], torch.int64).shape == (0, 3)


def test_read_rows_converts_and_swaps_bytes(path):
    read = read_rows(path, "halves", [4, 1], torch.float64)
    assert torch.equal(read, torch.tensor([[2, 2.5, 3], [0.5, 1, 1.5]], dtype=torch.float64))


def test_an_epoch_is_a_permutation_from_the_seed_and_the_epoch():
    first = epoch_order(1000, seed=3, epoch=0)
    assert sorted(first) == list(range(1000))
    assert np.array_equal(first, epoch_order(1000, seed=3, epoch=0))
    for other in (epoch_order(1000, seed=3, epoch=1), epoch_order(1000, seed=4, epoch=0)):
        assert not np.array_equal(first, other)
        assert sorted(other) == list(range(1000))


def test_the_order_stays_what_it_was_in_earlier_versions():
    # A run resumed after an upgrade must not see its data in another order.
    assert epoch_order(10, seed=1, epoch=2).tolist() == [1, 4, 5, 0, 7, 6, 8, 2, 3, 9]


def test_batches_read_every_row_once_an_epoch(path):
    dataset = H5Dataset(path, "rows")
    batches = dataset.batches(8, seed=1, epochs=2, drop_last=False, device="cpu")
    taken = numbers(batches)
    assert [len(batch) for batch in taken] == 2 * [8, 8, 8, 8, 8, 8, 2]
    assert len(batches) == 14
    first, second = sum(taken[:7], []), sum(taken[7:], [])
    assert sorted(first) == sorted(second) == list(range(NUM_ROWS))
    assert first != second


def test_drop_last_leaves_out_what_fills_no_batch(path):
    dataset = H5Dataset(path, "rows")
    batches = dataset.batches(8, seed=1, epochs=2, device="cpu")
    assert [len(batch) for batch in numbers(batches)] == [8] * 12
    assert len(batches) == 12
    with pytest.raises(TypeError, match="epochs=None"):
        len(dataset.batches(8, seed=1, epochs=None, device="cpu"))


@pytest.mark.parametrize("start", [0, 1, 5, 6, 7, 13, 18, 30])
def test_start_goes_on_where_an_earlier_run_stopped(path, start):
    dataset = H5Dataset(path, "rows")
    whole = dataset.batches(8, seed=1, epochs=3, device="cpu")
    resumed = dataset.batches(8, seed=1, epochs=3, device="cpu", start=start)
    assert numbers(resumed) == numbers(whole)[start:]
    assert len(resumed) == max(0, 18 - start)


@pytest.mark.parametrize("size", [1, 4, 8, 50])
@pytest.mark.parametrize("row", [0, 1, 13, 49, 50, 77])
def test_start_row_goes_on_at_a_row_with_any_size(path, row, size):
    dataset = H5Dataset(path, "rows")
    order = [int(r) for epoch in range(3) for r in epoch_order(NUM_ROWS, 1, epoch)]
    resumed = dataset.batches(size, seed=1, epochs=3, drop_last=False, device="cpu", start_row=row)
    taken = numbers(resumed)
    assert sum(taken, []) == order[row:]
    assert len(taken) == len(resumed)


@pytest.mark.parametrize("prefetch", [0, 1, 2, 100])
def test_a_loop_goes_on_where_its_state_was_taken(path, prefetch):
    dataset = H5Dataset(path, "rows")

    def batches(size=8):
        return dataset.batches(size, seed=1, epochs=3, device="cpu", prefetch=prefetch)

    whole = numbers(batches())
    for taken in (0, 1, 5, 6, 7, 17, 18):
        first, second = batches(), batches()
        got = [batch[:, 0].tolist() for _, batch in zip(range(taken), first, strict=False)]
        second.load_state_dict(first.state_dict())
        assert len(second) == 18 - taken
        assert got + numbers(second) == whole
        assert numbers(second) == whole[taken:], "again the same"
    other = batches(10)
    first = batches()
    next(iter(first))
    other.load_state_dict(first.state_dict())
    assert numbers(other)[0] == epoch_order(NUM_ROWS, 1, 0)[8:18].tolist()
    with pytest.raises(ValueError, match="with seed 1, and these have 2"):
        dataset.batches(8, seed=2, device="cpu").load_state_dict(first.state_dict())


def test_batches_are_read_ahead(path, monkeypatch):
    """While the loop does something else, a thread reads what comes next."""
    from dtorch_mpi import data

    reads, read = [], data.read_rows
    here = threading.get_ident()

    def noted(*arguments):
        reads.append(threading.get_ident() == here)
        return read(*arguments)

    monkeypatch.setattr(data, "read_rows", noted)
    loop = iter(H5Dataset(path, "rows").batches(8, seed=1, device="cpu", prefetch=3))
    next(loop)
    until = time.monotonic() + 30
    while len(reads) < 4 and time.monotonic() < until:
        time.sleep(0.001)
    assert reads.count(False) == 3
    assert reads.count(True) == 1
    list(loop)
    assert (reads.count(False), reads.count(True)) == (5, 1)


def test_a_read_that_failed_ahead_is_told_when_it_is_due(path):
    loop = iter(H5Dataset(path, "rows").batches(8, seed=1, device="cpu", prefetch=1))
    next(loop)
    with h5py.File(path + ".new", "w") as file:
        file["rows"] = np.zeros((3, 3))
    os.replace(path + ".new", path)
    with pytest.raises(ValueError, match="was the file replaced while it was in use"):
        list(loop)


def test_rank_0_sends_row_numbers_that_do_not_depend_on_the_mesh(path, monkeypatch):
    dataset = H5Dataset(path, "rows")
    calls = []
    kernels = SimpleNamespace(call=lambda name, args, **how: calls.append((name, args, how)))
    monkeypatch.setattr(dtorch_mpi, "kernels", kernels, raising=False)
    taken = {}
    for mesh in ("one worker", "four workers"):
        calls.clear()
        assert list(dataset.batches(8, seed=1, mesh=mesh, placements=["s"])) == [None] * 6
        for name, (sent_path, sent_dataset, dtype, _, sent), how in calls:
            assert name == "data.read_rows"
            assert (sent_path, sent_dataset, dtype) == (path, "rows", "int64")
            assert how == {"sizes": (8, 3), "dtype": torch.int64, "mesh": mesh,
                           "placements": ["s"]}
            assert [len(rows) for _, rows in sent] == [32] * len(sent), "of the same length"
        # This batch, and two ahead: named once, and again when they are due.
        assert [len(args[4]) for _, args, _ in calls] == [3, 2, 2, 2, 1, 1]
        taken[mesh] = [np.frombuffer(args[4][0][1], dtype="i4").tolist() for _, args, _ in calls]
    assert taken["one worker"] == taken["four workers"]
    plain = dataset.batches(8, seed=1, device="cpu")
    assert taken["one worker"] == numbers(plain)


def test_a_relative_path_is_sent_as_an_absolute_one(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    dataset = H5Dataset("rows.h5", "rows")
    monkeypatch.chdir("/")
    assert len(numbers(dataset.batches(8, seed=1, device="cpu"))) == 6


def test_a_file_written_anew_is_read_anew(path, tmp_path):
    assert read_rows(path, "rows", [0], torch.int64).tolist() == [[0, 1, 2]]
    write(tmp_path / "new.h5", first=100)
    os.replace(tmp_path / "new.h5", path)
    assert read_rows(path, "rows", [0], torch.int64).tolist() == [[100, 101, 102]]


@pytest.mark.parametrize("locking", [None, False])
def test_users_may_have_the_file_open_too(path, locking):
    with h5py.File(path, locking=locking):
        assert read_rows(path, "rows", [1], torch.int64).tolist() == [[1, 2, 3]]
    with h5py.File(path, locking=locking) as file:
        assert file["rows"].shape == (NUM_ROWS, 3)


def read_in_child(path, answers):
    answers.put(read_rows(path, "rows", [5, 2], torch.int64).tolist())


def test_reading_goes_on_in_a_forked_child_and_beside_it(path):
    read_rows(path, "rows", [0], torch.int64)
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    child = fork.Process(target=read_in_child, args=(path, answers))
    child.start()
    child.join(timeout=30)
    assert child.exitcode == 0
    assert answers.get() == [[5, 6, 7], [2, 3, 4]]
    assert read_rows(path, "rows", [9], torch.int64).tolist() == [[9, 10, 11]]


def test_threads_read_side_by_side(path):
    def total(number):
        rows = epoch_order(NUM_ROWS, seed=number, epoch=0)
        return int(read_rows(path, "rows", rows, torch.int64)[:, 0].sum())

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(total, range(40))) == {sum(range(NUM_ROWS))}


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        ("missing", r"no dataset 'missing' in .*; there are: halves, nothing, one, rows, words"),
        ("group", "no dataset 'group'"),
        ("words", "expected integers"),
        ("nothing", "at least one row"),
        ("one", "at least one row"),
    ],
)
def test_a_dataset_that_cannot_be_read_is_refused(path, dataset, text):
    with pytest.raises(ValueError, match=text):
        H5Dataset(path, dataset)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot read .*absent.h5: No such file"):
        H5Dataset(tmp_path / "absent.h5", "rows")
    (tmp_path / "text.h5").write_text("not HDF5")
    with pytest.raises(ValueError, match="as an HDF5 file"):
        H5Dataset(tmp_path / "text.h5", "rows")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "got batch_size 0, expected at least 1"),
        ({"batch_size": 51}, "got batch_size 51 for 50 rows"),
        ({"seed": -1}, "got seed -1"),
        ({"seed": 2**64}, "below 2"),
        ({"epochs": 0}, "got epochs 0"),
        ({"start": -1}, "got start -1"),
        ({"start_row": -1}, "got start_row -1"),
        ({"start": 1, "start_row": 8}, "got start 1 together with start_row 8"),
        ({"prefetch": -1}, "got prefetch -1"),
        ({"mesh": "a mesh"}, "got device 'cpu' together with a mesh"),
        ({"device": None, "placements": []}, "without a mesh"),
    ],
)
def test_batches_refuses_arguments_at_the_call(path, options, text):
    dataset = H5Dataset(path, "rows")
    with pytest.raises(ValueError, match=text):
        dataset.batches(**{"batch_size": 8, "seed": 1, "device": "cpu"} | options)


def test_batches_refuses_a_dtype_that_is_none(path):
    with pytest.raises(TypeError, match="got dtype 'int64'"):
        H5Dataset(path, "rows").batches(8, seed=1, device="cpu", dtype="int64")


@pytest.mark.parametrize("row", [-1, NUM_ROWS])
def test_a_row_that_does_not_exist_is_named(path, row):
    with pytest.raises(ValueError, match=f"row {row} asked"):
        read_rows(path, "rows", [3, row], torch.int64)
