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

EARLY = ("USR1", "USR2")  # under a launcher, from the job's start on
_comm = None  # of all ranks, for nothing else
_folder = None  # in which the ranks of this node have their marks
_came = []  # (signal's number, rank), in the order of hearing of them
_handlers = {}  # number of a signal that is noted here: its handler
_awaited = set()  # numbers of those that somebody looks out for
_here = threading.local()  # .mask: of signals, while this thread forks


def join_job(comm, folder):
    """Note EARLY ones from here on; called on all ranks of a job under a launcher.

    folder: watcher.job_folder(). Where the program runs, a handler of its own is left alone.
    """
    global _comm, _folder
    _comm, _folder = comm, folder
    if threading.current_thread() is not threading.main_thread():
        return
    numbers = [_number(name) for name in EARLY]
    if comm.rank > 0:
        _note_on_worker(numbers)
        return
    for number in numbers:
        if signal.getsignal(number) is signal.SIG_DFL:
            _note_here(number)


def watch(names):
    """Look out for signals of these names ("USR1"): on all ranks they ask to stop, and end none.

    One that came before counts too. In the program's main thread only; a handler that the program
    has set before is called too. Raises ValueError for a name that is none and in another thread.
    """
    from . import runtime

    numbers = {_number(name) for name in names}
    if not numbers - _awaited:
        return
    if threading.current_thread() is not threading.main_thread():
        raise ValueError(
            "signals can be watched in the program's main thread only, and this is "
            f"{threading.current_thread().name}: make the Checkpointer there, or with signals=()"
        )
    for number in numbers - _awaited:
        if number not in _handlers:
            _note_here(number)
    _awaited.update(numbers)
    if _comm is not None and runtime.current() is not None:
        call("dtorch.note_signals", [sorted(numbers)], sizes=[], dtype=torch.uint8)


def asked():
    """Why the job is to stop, as text, or None. Costs a microsecond.

    Raises RuntimeError where the signal told of the end of another rank: Hydra sends USR1 for
    that, too, when it is not to end the others itself.
    """
    if _comm is not None:
        _hear_of_workers()
    came = next((one for one in _came if one[0] in _awaited), None)
    if came is None:
        return None
    number, rank = came
    where = "" if _comm is None else f" that came to rank {rank}"
    reason = f"{signal.Signals(number).name}{where}"
    if _folder is not None and (ended := _ended_ranks()):
        raise RuntimeError(
            f"got {reason}, and rank {ended[0]} on host {socket.gethostname()} has ended: this is "
            "taken for the launcher's word of a failure, not for a request to stop"
        )
    return reason


def lost():
    """Names of awaited signals that another handler gets, set by the program since."""
    return [signal.Signals(number).name for number in sorted(_awaited)
            if signal.getsignal(number) is not _handlers[number]]  # fmt: skip


def hear_the_last():
    """Take what workers have told, before the job leaves MPI."""
    if _comm is not None:
        _hear_of_workers()


def _note_here(number):
    former = signal.getsignal(number)
    handler = functools.partial(_note, former if callable(former) else None)
    _handlers[number] = handler
    signal.signal(number, handler)


def _note(former, number, frame):
    if not any(one[0] == number for one in _came):
        _came.append((number, 0))
        if number not in _awaited:
            # Not by print or logging: this may be in the midst of one.
            os.write(2, f"[dtorch-mpi] got {signal.Signals(number).name}: it asks to stop, and "
                        "nobody looks out for it but a dt.checkpoint.Checkpointer\n".encode())
    if former is not None:
        former(number, frame)


def _number(name):
    try:
        return int(signal.Signals["SIG" + name.removeprefix("SIG")])
    except KeyError:
        raise ValueError(f"no signal is named {name!r}: expected a name such as USR1") from None


def _hear_of_workers():
    from mpi4py import MPI

    status = MPI.Status()
    while _comm.Iprobe(MPI.ANY_SOURCE, 0, status):
        number = bytearray(1)
        _comm.Recv([number, MPI.BYTE], status.source, 0)
        _came.append((number[0], status.source))


def _ended_ranks():
    from .watching.death_watch import mark_of, records

    return sorted(rank for rank, path in records(_folder) if has_ended(mark_of(path)))


@kernel("dtorch.note_signals")
def _note_signals(context, numbers):
    # A worker that rank 0 hosts is a thread of rank 0, whose handlers are set.
    if threading.current_thread() is threading.main_thread():
        _note_on_worker(numbers)
    return torch.zeros((), dtype=torch.uint8)


def _note_on_worker(numbers):
    if not _handlers:
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=_tell_rank0, args=(read,), name="dtorch-signals",
                         daemon=True).start()  # fmt: skip
    for number in numbers:
        _handlers[number] = _leave_to_thread
        signal.signal(number, _leave_to_thread)


def _leave_to_thread(number, frame):
    pass


def _tell_rank0(pipe):
    from mpi4py import MPI

    while True:
        for number in os.read(pipe, 64):
            if number in _handlers:
                _comm.Send([bytes([number]), MPI.BYTE], 0, 0)


def _hold():
    # One that comes to the child while it still has our handlers would be lost.
    _here.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handlers)


def _let_go():
    signal.pthread_sigmask(signal.SIG_SETMASK, _here.mask)


def _forget():
    """In a forked child, which the program ends by signals as any other."""
    if _leave_to_thread in _handlers.values():
        signal.set_wakeup_fd(-1)
    for number, handler in _handlers.items():
        if signal.getsignal(number) is handler:
            former = handler.args[0] if isinstance(handler, functools.partial) else None
            signal.signal(number, former or signal.SIG_DFL)
    _handlers.clear()
    _awaited.clear()
    _let_go()


os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_forget)
