"""One rank of a job in which rank 1 ends in the way that the first argument names.

Rank 0 writes the job's folder to the file that the last one names, and the names of its shared
memory to one beside it: a launcher that kills its ranks may lose what they have printed.
"""

import ctypes
import os
import signal
import socket
import sys
import time
from pathlib import Path

from mpi4py import MPI

from dtorch_mpi.watching import death_watch, watcher

way, library, folder_file = sys.argv[1:]
world = MPI.COMM_WORLD
record = ctypes.CDLL(library)
host = socket.gethostname()
path = os.path.join(watcher.job_folder(), f"rank-{world.rank}.record")
assert record.create(path.encode(), world.rank, world.size, host.encode(), b"worker")
record.catch_fatal_signals()
watcher.start(path, pid=os.getpid(), rank=world.rank, world=world.size, host=host)
record.define_op(7, b"aten::mm")
record.define_site(3, b"train.py:31")
record.set_state(1)
for _ in range(1234):
    record.note(7, 3)
if world.rank == 0:
    Path(f"{folder_file}.memory").write_text(" ".join(death_watch.shared_memory_of(os.getpid())))
    Path(folder_file).write_text(os.path.dirname(path))
world.Barrier()
if world.rank == 0:
    print("all ranks are ready", flush=True)
if world.rank == 1:
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "segv":
        ctypes.string_at(0)
    if way == "exit":
        os._exit(3)
    if way == "abort":
        record.set_cause(b"the loss is not a number")
        record.set_state(5)
        world.Abort(5)
if way != "finish":
    time.sleep(20)
record.set_state(4)
