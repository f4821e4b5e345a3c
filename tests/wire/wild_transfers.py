"""Run by test_wild_records.py under mpirun: uploads that name data which never comes."""

import struct
import threading

import numpy
from mpi4py import MPI
from records import UPLOAD, int_list, integer, record

from dtorch_mpi import _controller, _mpi, _worker

TAG = 3  # of data beside the batches
MAX_DIMS = 128

comm = MPI.COMM_WORLD

if comm.rank == 1:
    link = _mpi.MPIWorkerLink(comm, 0, [1], None, 50)
    maker = _mpi.group_maker(comm, 1)
    worker = _worker.Worker(0, "cpu", "here", link.worker_end(), maker, num_workers=1)

    def failed(number):
        before = worker.num_failures
        worker.execute_bytes(
            record(UPLOAD, integer(6), int_list(2), int_list(1), 0, integer(number))
        )
        return worker.num_failures > before

    assert not failed(1)  # before it is its turn
    assert not failed(0)
    assert failed(1) and failed(0)  # again
    assert failed(3) and failed(-1) and failed(1 << 40)
    comm.send("asked", 0, tag=10)
    assert not failed(2)  # late
    assert failed(2)
    while not link.drain(0.1):
        pass
else:
    link = _mpi.MPILink(comm, [1], [False], None, "network", 50)
    controller = _controller.Controller(
        _controller.SendOrder(), 0, [link.controller_end()], window_bytes=1 << 16,
        gather_microseconds=40, traces=False, for_graphs=False,
    )
    thread = threading.Thread(target=controller.run)
    thread.start()

    def send(number):
        header = struct.pack(
            f"IiiIiIIIQQ{2 * MAX_DIMS}q",
            *(1, 6, 1, 0, 0, 0, 0, 0, number, 8),
            *(2, *[0] * (MAX_DIMS - 1), 1, *[0] * (MAX_DIMS - 1)),
        )  # fmt: skip
        comm.Send([header, MPI.BYTE], 1, TAG)
        comm.Send([numpy.ones(2, "float32"), MPI.BYTE], 1, TAG)

    send(0)
    send(1)
    comm.recv(source=1, tag=10)
    send(2)
    while not link.drain(0.1):
        pass
    controller.abandon()
    thread.join()
    print("all answered")
comm.Barrier()
