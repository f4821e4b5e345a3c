"""Run by test_wild_records.py under mpirun: batches that end in the middle of a word."""

import struct

from mpi4py import MPI
from records import SYNC, integer, record

from dtorch_mpi import _mpi, _worker

TAG = 1  # of batches
SHUTDOWN = 13

comm = MPI.COMM_WORLD
if comm.rank == 1:
    link = _mpi.MPIWorkerLink(comm, 0, [1], None, 50)
    maker = _mpi.group_maker(comm, 1)
    worker = _worker.Worker(0, "cpu", "here", link.worker_end(), maker, num_workers=1)
    worker.keep_batches()
    worker.run(1)
    # The words that are whole: of a batch of 3 bytes, none.
    sizes = [len(batch) for batch in worker.kept_batches()]
    assert sizes == [28, 28, 28, 0, 0, 16], sizes
    assert worker.num_failures == 3  # promises of an unknown home
    while not link.drain(0.1):
        pass
else:
    wild = record(SYNC, integer(9))
    for batch in wild + b"\xff", wild + b"\xff" * 2, wild + b"\xff" * 3, b"\xff" * 3, b"":
        comm.Send([batch, MPI.BYTE], 1, TAG)
    comm.Send([record(SHUTDOWN), MPI.BYTE], 1, TAG)
    progress = 0
    while progress < 1 << 63:  # the last word of a worker that was shut down
        buffer = bytearray(8)
        comm.Recv([buffer, MPI.BYTE], 1, 2)
        (progress,) = struct.unpack("Q", buffer)
    print("all answered")
comm.Barrier()
