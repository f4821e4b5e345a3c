"""Run by test_wild_records.py under mpirun: promises whose place is not in rank 0's memory."""

from mpi4py import MPI
from records import SHARED, SYNC, promise, record

from dtorch_mpi import _mpi, _worker

SIZE = 1 << 20
UNITS = SIZE // 64  # a reply's place and room come in these

comm = MPI.COMM_WORLD
board = _mpi.SharedMemory(comm, SIZE)
if comm.rank == 1:
    link = _mpi.MPIWorkerLink(comm, 0, [1], board, 50)
    maker = _mpi.group_maker(comm, 1)

    def failures(first, room):
        worker = _worker.Worker(0, "cpu", "here", link.worker_end(), maker, num_workers=1)
        worker.execute_bytes(record(SYNC, promise(SHARED, 1, first << 24 | room)))
        return worker.num_failures

    assert failures(0, 100) == 0
    assert failures(UNITS - 100, 100) == 0
    assert failures(UNITS - 99, 100) == 1
    assert failures((1 << 39) - 1, 100) == 1
    assert failures(0, UNITS + 1) == 1
    # Too small a room for a failure's text.
    assert failures(0, 0) == failures(0, 1) == failures(0, 80) == 1
    print("all answered")
comm.Barrier()
board.free()
