"""Cases that only ranks of MPI run: they measure the process or need much of its memory."""

import time
import weakref

import torch

from .calls import allgather, allreduce, assert_equal, barrier, broadcast
from .conformance import case


@case(needs=("mpi_ranks",), min_size=2)
def waiting_burns_no_core(backend, rank, size):
    barrier(backend).wait()
    if rank == 0:
        time.sleep(1)
        barrier(backend).wait()
    else:
        work = barrier(backend)
        before = time.process_time()
        work.wait()
        used = time.process_time() - before
        assert used < 0.4, f"a second of waiting took {used:.2f} s of CPU time"


@case(needs=("mpi_ranks",))
def dropped_handles_let_go(backend, rank, size):
    """What nobody waits for still ends, and its memory goes."""
    tensor = torch.ones(1000)
    alive = weakref.ref(tensor.untyped_storage())
    allreduce(backend, [tensor])
    del tensor
    for _ in range(50):
        barrier(backend).wait()
    assert alive() is None


@case(needs=("mpi_ranks", "only_by_name"), min_size=2)
def more_than_two_gib(backend, rank, size):
    """2^31 + 9 bytes in one collective; at most 7 GiB on each of two ranks."""
    n = 2**31 + 9
    tensor = torch.zeros(n, dtype=torch.uint8)
    tensor[-1], tensor[0] = rank + 5, 7 * rank
    broadcast(backend, tensor, 1).wait()
    assert (tensor[0], tensor[n // 2], tensor[-1]) == (7, 0, 6)
    allreduce(backend, [tensor]).wait()
    assert (tensor[0], tensor[n // 2], tensor[-1]) == (7 * size, 0, 6 * size)
    mine = tensor[: n - 3] if rank == 0 else tensor[: 3 if rank == 1 else 0]
    mine.fill_(rank + 1)
    whole = torch.empty(n, dtype=torch.uint8)
    rows = [n - 3, 3] + [0] * (size - 2)
    allgather(backend, list(whole.split(rows)), mine).wait()
    assert_equal(whole[n - 5:], torch.tensor([1, 1, 2, 2, 2], dtype=torch.uint8))
    assert whole[0] == 1
