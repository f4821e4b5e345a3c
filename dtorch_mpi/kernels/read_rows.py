"""The worker's part of `dtorch_mpi.data`: reading the rows of its own shard, some batches ahead."""

import threading

import numpy as np
import torch

from dtorch_mpi.data import read_rows
from dtorch_mpi.kernels.registry import kernel
from dtorch_mpi.read_ahead import ReadAhead

_here = threading.local()


@kernel("data.read_rows")
def read_local_rows(context, path, dataset, dtype_name, iteration, batches):
    """Return this worker's shard of the first of the batches, on its device; read on for others.

    batches: (number, rows) of this one and of those that follow and were not named before, as
    bytes, so that the call's length does not depend on what they are. All have as many rows.
    """
    ahead = _here.__dict__.setdefault("ahead", ReadAhead())
    (((first, count), *inner),) = context.local_slices

    (num_rows, *_), = context.sizes

    def reading(rows):
        width = np.int32 if len(rows) == 4 * num_rows else np.int64
        own = np.frombuffer(rows, dtype=width)[first : first + count]
        return lambda: read_rows(path, dataset, own, getattr(torch, dtype_name))

    (number, rows), *following = batches
    for later, its_rows in following:
        ahead.begin((iteration, later), reading(its_rows))
    shard = ahead.take((iteration, number), reading(rows))
    for dim, (offset, size) in enumerate(inner, start=1):
        shard = shard.narrow(dim, offset, size)
    return shard.contiguous().to(context.device)
