"""Workers write one file together, through HDF5's mpio driver."""

import functools
import math
import time

import h5py
import numpy as np

from ..kernels.registry import going_on
from . import manifest
from .elements import dtype_of, stored_dtype, to_array
from .index import note_dtype

FILE = "workers.h5"


def is_possible(running):
    """Whether h5py has MPI, and the workers are ranks."""
    return h5py.get_config().mpi and running.first_rank is not None


def write(path, num_workers, tensors, parts):
    """Called on all workers; returns whether this one is to describe the file.

    tensors: {name: (dtype name, sizes)}, the same on all. parts: {name: (offsets, tensor)} of this
    worker, or the error because of which it has none.
    """
    comm = _workers(num_workers)
    error = parts if isinstance(parts, Exception) else None
    _agree(comm, error)
    with h5py.File(path, "w", driver="mpio", comm=comm) as file:
        datasets = {}
        for name, (dtype, sizes) in tensors.items():
            if math.prod(sizes):
                stored = stored_dtype(dtype_of(dtype))
                datasets[name] = file.create_dataset(name, shape=tuple(sizes), dtype=stored)
                note_dtype(datasets[name], dtype_of(dtype))
        try:
            for name, (offsets, part) in parts.items():
                place = tuple(slice(o, o + n) for o, n in zip(offsets, part.shape, strict=True))
                datasets[name][place] = to_array(part)
                going_on()
        except OSError as failure:
            error = failure  # the others wait in close()
    if error is None:
        try:
            manifest.sync(path)
        except OSError as failure:
            error = failure
    _agree(comm, error)
    return comm.rank == 0


@functools.cache
def _workers(num_workers):
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    ranks = list(range(world.size - num_workers, world.size))
    return world.Create_group(world.group.Incl(ranks))


def _agree(comm, error):
    """Wait for all workers; raises where one of them has an error."""
    failed = np.array([error is not None], dtype=np.int32)
    total = np.zeros_like(failed)
    # A plain one may burn a core for as long as the slowest worker writes.
    request = comm.Iallreduce(failed, total)
    while not request.Test():
        time.sleep(0.001)
        going_on()  # whoever is waited for has a watchdog too
    if error is not None:
        raise error
    if total[0]:
        raise RuntimeError("another worker could not write its part")
