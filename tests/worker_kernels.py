"""Python kernels that tests of several rooms call; every rank imports this."""

import os
import random
import time

import torch

from dtorch_mpi.kernels import call, kernel
from dtorch_mpi.mesh import init_device_mesh
from dtorch_mpi.runtime import num_workers


@kernel("tests.sleep")
def _sleep(context, seconds):
    time.sleep(seconds)
    return torch.full(context.sizes[0], 3.0)


def slow(seconds):
    """Two threes that every worker takes `seconds` to make."""
    return call("tests.sleep", [seconds], sizes=[2], dtype=torch.float32)


@kernel("tests.fail_on")
def _fail_on(context, failing, sizes):
    ((first, rows), *inner), = context.local_slices
    if first == failing:
        raise ValueError(f"worker {failing} was told to fail")
    return torch.full([rows, *(size for _, size in inner)], float(first))


def fail_on(worker, columns=2):
    """One row a worker, of its number; the given worker fails to make its own. -1: none does."""
    from torch.distributed.tensor import Shard

    sizes = [num_workers(), columns]
    return call("tests.fail_on", [worker, sizes], sizes=sizes, dtype=torch.float32,
                mesh=init_device_mesh((num_workers(),)), placements=[Shard(0)])  # fmt: skip


@kernel("tests.die")
def _die(context, worker, number):
    ((first, rows), *_), = context.local_slices
    if first == worker:
        os.kill(os.getpid(), number)
        time.sleep(30)  # not before the signal is there
    return torch.zeros(rows)


def die(worker, number):
    """Have the given worker's process get a signal."""
    from torch.distributed.tensor import Shard

    return call("tests.die", [worker, number], sizes=[num_workers()], dtype=torch.float32,
                mesh=init_device_mesh((num_workers(),)), placements=[Shard(0)])  # fmt: skip


@kernel("tests.uneven_sleep")
def _uneven_sleep(context, longest, seed):
    ((first, rows), *_), = context.local_slices
    time.sleep(random.Random(seed * 1000 + first).uniform(0, longest))
    return torch.zeros(rows)


def uneven_sleep(longest, seed):
    """Each worker sleeps for another time of at most `longest` seconds."""
    from torch.distributed.tensor import Shard

    return call("tests.uneven_sleep", [longest, seed], sizes=[num_workers()], dtype=torch.float32,
                mesh=init_device_mesh((num_workers(),)), placements=[Shard(0)])  # fmt: skip
