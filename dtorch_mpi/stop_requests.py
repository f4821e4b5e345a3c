"""Signals by which a launcher or scheduler asks the whole job to stop, to whichever rank they come.

A worker's main thread is in compiled code that runs no Python handler, so a thread of its own hears
of the signal and tells rank 0, which looks between two steps of its program.
"""

import functools
import os
import signal
import socket
import threading

import torch

from .kernels.registry import call, kernel
from .watching.process_end import has_ended

_comm = None  # of all ranks, for nothing else
_folder = None  # in which the ranks of this node have their marks
_asked = None  # (signal's number, rank), the first there was
_watched = set()  # numbers of signals


def join_job(comm, folder):
    """Called on all ranks of a job under a launcher; folder: watcher.job_folder()."""
    global _comm, _folder
    _comm, _folder = comm, folder


def watch(names):
    """Have signals of these names ("USR1") ask to stop instead of ending a rank, on all ranks.

    Only in the program's main thread. On rank 0, a handler that the program has set before is
    called too. Raises ValueError for a name that is none and in another thread.
    """
    from . import runtime

    numbers = [_number(name) for name in names]
    new = [number for number in numbers if number not in _watched]
    if not new:
        return
    if threading.current_thread() is not threading.main_thread():
        raise ValueError(
            "signals can be watched in the program's main thread only, and this is "
            f"{threading.current_thread().name}: make the Checkpointer there, or with signals=()"
        )
    for number in new:
        former = signal.getsignal(number)
        signal.signal(number, functools.partial(_note, former if callable(former) else None))
    _watched.update(new)
    if _comm is not None and runtime.current() is not None:
        call("dtorch.watch_signals", [new], sizes=[], dtype=torch.uint8)


def asked():
    """Why the job is to stop, as text, or None. Costs a microsecond.

    Raises RuntimeError where the signal told of the end of another rank: Hydra sends USR1 for
    that, too, when it is not to end the others itself.
    """
    global _asked
    if _asked is None and _comm is not None:
        _asked = _from_workers()
    if _asked is None:
        return None
    number, rank = _asked
    where = "" if _comm is None else f" that came to rank {rank}"
    reason = f"{signal.Signals(number).name}{where}"
    if _folder is not None and (ended := _ended_ranks()):
        raise RuntimeError(
            f"got {reason}, and rank {ended[0]} on host {socket.gethostname()} has ended: this is "
            "taken for the launcher's word of a failure, not for a request to stop"
        )
    return reason


def _note(former, number, frame):
    global _asked
    if _asked is None:
        _asked = number, 0
    if former is not None:
        former(number, frame)


def _number(name):
    try:
        return int(signal.Signals["SIG" + name.removeprefix("SIG")])
    except KeyError:
        raise ValueError(f"no signal is named {name!r}: expected a name such as USR1") from None


def _from_workers():
    from mpi4py import MPI

    status = MPI.Status()
    if not _comm.Iprobe(MPI.ANY_SOURCE, 0, status):
        return None
    number = bytearray(1)
    _comm.Recv([number, MPI.BYTE], status.source, 0)
    return number[0], status.source


def _ended_ranks():
    from .watching.death_watch import mark_of, records

    return sorted(rank for rank, path in records(_folder) if has_ended(mark_of(path)))


@kernel("dtorch.watch_signals")
def _watch_on_worker(context, numbers):
    # A worker that rank 0 hosts is a thread of rank 0, whose handlers are set.
    if threading.current_thread() is threading.main_thread():
        if not _watched:
            read, write = os.pipe()
            os.set_blocking(write, False)
            signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            threading.Thread(target=_tell_rank0, args=(read,), name="dtorch-signals",
                             daemon=True).start()  # fmt: skip
        _watched.update(numbers)
        for number in numbers:
            signal.signal(number, lambda number, frame: None)
    return torch.zeros((), dtype=torch.uint8)


def _tell_rank0(pipe):
    from mpi4py import MPI

    while True:
        for number in os.read(pipe, 64):
            if number in _watched:
                _comm.Send([bytes([number]), MPI.BYTE], 0, 0)
