"""The in-process backend: conformance, and what only threads can show."""

import gc
import threading
import time
import weakref

import pytest
import torch
import torch.distributed as dist

from dtorch_mpi._collectives import ThreadGroup

from .calls import allreduce, barrier, broadcast
from .conformance import load
from .members import run_in_threads

LACKS = {
    "abort_is_local": "abort() frees every member of the group",
    "checks_received": "a receive of another size is seen as a mismatch, on both sides",
    "mpi_ranks": "is not a rank of MPI",
    "receive_overflow": "as checks_received",
}
CASES = [c for c in load().values() if not c.needs & LACKS.keys()]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conformance(case, size):
    if size < case.min_size:
        pytest.skip("needs more members")
    group = ThreadGroup(size)
    run_in_threads(case, [group.backend(r) for r in range(size)], group.abort)


def test_wrong_size_and_rank():
    with pytest.raises(ValueError, match="size is 0, expected 1 or more"):
        ThreadGroup(0)
    with pytest.raises(ValueError, match="rank is 2, expected 0 to 1"):
        ThreadGroup(2).backend(2)


def test_send_of_another_size_raises_on_both_sides():
    group = ThreadGroup(2)
    send = group.backend(0).send([torch.ones(3)], 1, 0)
    recv = group.backend(1).recv([torch.empty(5)], 0, 0)
    for work in (send, recv):
        with pytest.raises(dist.DistBackendError, match="3 elements to give"):
            work.wait()


def test_sixteen_members():
    """More threads than cores."""
    size = 16
    group = ThreadGroup(size)
    sums = [None] * size

    def member(rank):
        backend = group.backend(rank)
        for _ in range(50):
            tensor = torch.full((1000,), float(rank))
            allreduce(backend, [tensor]).wait()
        sums[rank] = tensor[0].item()

    threads = [threading.Thread(target=member, args=(r,)) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sums == [120.0] * size


def test_waiting_burns_no_core():
    group = ThreadGroup(2)
    work = barrier(group.backend(0))
    waiter = threading.Thread(target=work.wait)
    start = time.process_time()
    waiter.start()
    time.sleep(1)
    used = time.process_time() - start
    barrier(group.backend(1)).wait()
    waiter.join(10)
    assert used < 0.2, f"a second of waiting took {used:.2f} s of CPU time"


def test_a_collective_that_nobody_joins_is_let_go():
    """Its memory goes with the group; a handle that outlives both raises."""
    group = ThreadGroup(2)
    backend = group.backend(0)
    tensor = torch.ones(10)
    work = allreduce(backend, [tensor])
    alive = weakref.ref(tensor.untyped_storage())
    del group, backend, tensor
    gc.collect()
    with pytest.raises(dist.DistBackendError, match="group of worker threads is gone"):
        work.wait()
    del work
    gc.collect()
    assert alive() is None


def test_groups_do_not_mix():
    """A member may be in several groups and interleave their collectives."""
    rows = [ThreadGroup(2), ThreadGroup(2)]
    columns = [ThreadGroup(2), ThreadGroup(2)]
    seen = [None] * 4

    def member(index):
        row, column = divmod(index, 2)
        across = rows[row].backend(column)
        along = columns[column].backend(row)
        first, second = torch.full((5,), float(index)), torch.full((5,), float(index))
        works = [allreduce(across, [first]), broadcast(along, second, 1)]
        for work in works:
            work.wait()
        seen[index] = (first[0].item(), second[0].item())

    threads = [threading.Thread(target=member, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == [(1.0, 2.0), (1.0, 3.0), (5.0, 2.0), (5.0, 3.0)]


@pytest.mark.slow
def test_more_than_two_gib():
    """2^31 + 9 bytes, 4 GiB of memory in all."""
    n = 2**31 + 9
    group = ThreadGroup(2)
    tensors = [torch.zeros(n, dtype=torch.uint8) for _ in range(2)]
    tensors[0][-1], tensors[1][-1], tensors[1][0] = 5, 6, 7
    works = [allreduce(group.backend(r), [tensors[r]]) for r in range(2)]
    for work in works:
        work.wait()
    for tensor in tensors:
        assert (tensor[0], tensor[n // 2], tensor[-1]) == (7, 0, 11)
