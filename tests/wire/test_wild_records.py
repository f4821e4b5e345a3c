"""Malformed records found one by one: each is an error, and what follows it still runs."""

from pathlib import Path

import pytest
import torch
from launching import run_job
from records import OUTPUT, PYTHON_KERNEL, int_list, integer, record, text

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


def test_a_promise_outside_of_rank_0s_memory():
    folder = Path(__file__).parent
    ended = run_job(folder / "wild_promises.py", launcher="mpirun", workers=1)
    assert ended.code == 0, ended.out + ended.err
    assert ended.out == "all answered\n"
