"""A worker's share of a load: it checks some of the files, and reads its own part of tensors."""

import threading
from pathlib import Path

import torch

from ..kernels.registry import kernel
from . import index, manifest
from .elements import to_tensor
from .errors import CheckpointError
from .worker_writing import row, worker_of

_here = threading.local()  # .index: the open one


@kernel("dtorch.checkpoint.open")
def _open(context, folder, files, to_check):
    """files: {name: entry}. to_check: names, by worker, of those whose content to check."""
    try:
        manifest.check_sizes(folder, files)
        for name in to_check[worker_of(context)]:
            manifest.check_content(folder, name, files[name])
        _here.index = index.open_index(Path(folder))
    except CheckpointError as error:
        return row(context, {"wrong": str(error)[:600]})
    return row(context, {"wrong": None})


@kernel("dtorch.checkpoint.read")
def _read(context, name):
    (slices,) = context.local_slices
    return read_part(_here.index, name, slices).to(context.device)


@kernel("dtorch.checkpoint.close")
def _close(context):
    _here.index.close()
    return row(context, {})


def read_part(opened, name, slices=None):
    """A part of a tensor in an open index as a CPU tensor; slices: (offset, size) of each dim."""
    dataset, dtype = index.dataset_of(opened, name)
    place = tuple(slice(o, o + n) for o, n in slices) if slices is not None else ()
    if 0 in dataset.shape or slices is not None and any(n == 0 for _, n in slices):
        sizes = dataset.shape if slices is None else [n for _, n in slices]
        return torch.empty(sizes, dtype=dtype)
    try:
        return to_tensor(dataset[place], dtype)
    except OSError as error:
        raise CheckpointError(f"cannot read {name!r} of {opened.filename}: {error}") from error
