"""The worker's part of `dtorch_mpi.data`: reading the rows of its own shard."""

import torch

from dtorch_mpi.data import read_rows
from dtorch_mpi.kernels.registry import kernel


@kernel("data.read_rows")
def read_local_rows(context, path, dataset, rows, dtype_name):
    """Return this worker's shard of the rows, on its device."""
    (((first, count), *inner),) = context.local_slices
    shard = read_rows(path, dataset, rows[first : first + count], getattr(torch, dtype_name))
    for dim, (offset, size) in enumerate(inner, start=1):
        shard = shard.narrow(dim, offset, size)
    return shard.contiguous().to(context.device)
