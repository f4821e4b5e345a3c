"""Run by test_wild_records.py under mpirun: values larger than rank 0 has asked for."""

import torch
from mpi4py import MPI
from records import GET, OUTPUT, PYTHON_KERNEL, int_list, integer, promise, record, text

from dtorch_mpi import _mpi, _worker
from dtorch_mpi.kernels import kernel

SIZES = 10, 3000, 1_000_000  # inline in the least message, inline, behind it

comm = MPI.COMM_WORLD
board = _mpi.SharedMemory(comm, 1 << 20)


@kernel("wire.count")
def count(context):
    return torch.arange(context.sizes[0][0], dtype=torch.float32)


def ask(link, number):
    """The parts that came where rank 0 expects 40 bytes."""
    replies, name = link.expect(number, 1, [0], 40)
    comm.send(name, 1)
    while not replies.wait(100_000):
        pass
    return replies.parts()


if comm.rank == 1:
    maker = _mpi.group_maker(comm, 1)
    link = _mpi.MPIWorkerLink(comm, 0, [1], board, 50)
    worker = _worker.Worker(0, "cpu", "here", link.worker_end(), maker, num_workers=1)
    for slot, size in enumerate(SIZES):
        worker.execute_bytes(record(
            PYTHON_KERNEL, text(b"wire.count"), text(b"\x90"), OUTPUT | slot, integer(6),
            int_list(size), 0, count=1,
        ))  # fmt: skip
    assert worker.num_failures == 0
    for slot in (*range(len(SIZES)), *range(len(SIZES))):
        worker.execute_bytes(record(GET, promise(*comm.recv(source=0)), 0, number=slot))
    # What does not fit shared memory has failed; a message is as long as its value.
    assert worker.num_failures == len(SIZES) - 1
    while not link.drain(0.1):
        pass
else:
    by_message = _mpi.MPILink(comm, [1], [True], board, "network", 50)
    for number, size in enumerate(SIZES):
        ((value, failure),) = ask(by_message, number)
        assert failure is None and torch.equal(value, torch.arange(size, dtype=torch.float32))
    shared = _mpi.MPILink(comm, [1], [True], board, "shared", 50)
    ((value, failure),) = ask(shared, 10)
    assert failure is None and value.tolist() == list(range(10))
    for number in 11, 12:
        ((value, failure),) = ask(shared, number)
        assert value is None and "larger than its reader expects" in failure[0], (value, failure)
    print("all answered")
comm.Barrier()
board.free()
