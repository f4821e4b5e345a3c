"""Malformed records found one by one: each is an error, and what follows it still runs."""

from pathlib import Path

import pytest
import torch
from launching import run_job
from records import OUTPUT, PYTHON_KERNEL, UPLOAD, int_list, integer, record, text

from dtorch_mpi import _collectives, _transport, _worker
from dtorch_mpi.kernels import kernel


@pytest.fixture
def worker():
    groups = _collectives.ThreadGroups()
    link = _transport.MemoryLink(0, 1, 0)
    return _worker.Worker(0, "cpu", "here", link.worker_end(0), groups.maker(), num_workers=1)


@kernel("wire.ones")
def ones(context):
    return torch.ones(context.sizes[0])


def kernel_call(name, slot):
    return record(PYTHON_KERNEL, text(name), text(b"\x90"), OUTPUT | slot, integer(6), int_list(2),
                  0, count=1)  # fmt: skip


def test_a_kernel_call(worker):
    assert worker.execute_bytes(kernel_call(b"wire.ones", 0))
    assert worker.num_failures == 0


def test_a_kernel_whose_name_is_no_text(worker):
    assert worker.execute_bytes(kernel_call(b"wire.\xff\xfe", 0))
    assert worker.num_failures == 1


def small_upload(slot):
    return record(UPLOAD, integer(3), int_list(1), int_list(1), 0, text(bytes(4)), number=slot)


def test_slots_far_beyond_the_table(worker):
    for slot in 1 << 16, 1 << 20, (1 << 24) - 1, 1 << 24, (1 << 32) - 1:
        failures = worker.num_failures
        assert worker.execute_bytes(small_upload(slot))
        assert worker.num_failures == failures + 1, slot
    # As rank 0 hands numbers out: none lies far beyond those in use.
    for slot in (1 << 16) - 1, (1 << 17) - 1, (3 << 16) - 1:
        failures = worker.num_failures
        assert worker.execute_bytes(small_upload(slot))
        assert worker.num_failures == failures, slot


@pytest.mark.parametrize(
    "script", ["wild_promises", "wild_replies", "wild_transfers", "wild_sizes"]
)
def test_what_comes_over_mpi(script):
    folder = Path(__file__).parent
    ended = run_job(folder / f"{script}.py", launcher="mpirun", workers=1)
    assert ended.code == 0, ended.out + ended.err
    assert ended.out == "all answered\n"
