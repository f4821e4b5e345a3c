"""Python kernels of one row a worker, in which the given one stays, or runs out of memory."""

import os
import resource
import signal
import time

import torch

from dtorch_mpi.kernels import going_on, kernel


@kernel("tests.hang")
def _hang(context, worker, how):
    """how: "loop", or "stop" by SIGSTOP."""
    (((first, rows),),) = context.local_slices
    if first == worker:
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        while how == "loop":
            time.sleep(0.01)
    return torch.zeros(rows)


@kernel("tests.long")
def _long(context, seconds):
    """Makes progress every twentieth of a second."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.05)
        going_on()
    return torch.zeros(context.sizes[0])


@kernel("tests.limit_memory")
def _limit_memory(context, worker, megabytes):
    """So much more than the process has now."""
    (((first, rows),),) = context.local_slices
    if first == worker:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20),) * 2)
    return torch.zeros(rows)
