"""index.h5: every tensor under its name, as if it lay there whole.

What workers have written is stitched together by virtual datasets, whose files are named relative
to the index, so that the folder can be moved. Tensors of the program's own memory are in it.
"""

import math

import h5py
import numpy as np

from ..data import open_file
from .elements import dtype_name, dtype_of, stored_dtype, to_array
from .errors import CheckpointError
from .folder import sync

INDEX = "index.h5"


def write(folder, distributed, own):
    """distributed: (name, dtype, sizes, [(file, offsets, sizes)]) of each tensor that lies in
    workers' files, under the same name. own: {name: CPU tensor}.
    """
    path = folder / INDEX
    with h5py.File(path, "w") as index:
        for name, dtype, sizes, parts in distributed:
            if not sizes:
                # A virtual dataset has dims.
                index[name] = h5py.ExternalLink(parts[0][0], name)
                continue
            note_dtype(_stitched(index, name, dtype, sizes, parts), dtype)
        for name, tensor in own.items():
            note_dtype(index.create_dataset(name, data=to_array(tensor)), tensor.dtype)
    sync(path)


def _stitched(index, name, dtype, sizes, parts):
    stored = stored_dtype(dtype)
    if not math.prod(sizes):
        return index.create_dataset(name, shape=sizes, dtype=stored)
    layout = h5py.VirtualLayout(shape=tuple(sizes), dtype=stored)
    for file, offsets, local in parts:
        place = tuple(slice(o, o + n) for o, n in zip(offsets, local, strict=True))
        layout[place] = h5py.VirtualSource(file, name, shape=tuple(local))
    # What a reader sees of a file that is missing: HDF5 calls it no error.
    fill = np.nan if stored.kind == "f" else None
    return index.create_virtual_dataset(name, layout, fillvalue=fill)


def write_part(file, name, part):
    """Write a worker's part of a tensor into its file; returns nothing."""
    note_dtype(file.create_dataset(name, data=to_array(part)), part.dtype)


def note_dtype(dataset, dtype):
    dataset.attrs["dtype"] = dtype_name(dtype)


def open_index(folder):
    """The index as an h5py.File; raises CheckpointError for one that is none."""
    try:
        return open_file(str(folder / INDEX))
    except ValueError as error:
        raise CheckpointError(str(error)) from error


def dataset_of(index, name):
    """(h5py.Dataset, torch.dtype) of a tensor."""
    try:
        dataset = index[name]
        return dataset, dtype_of(dataset.attrs["dtype"])
    except (KeyError, OSError) as error:
        raise CheckpointError(f"no tensor {name!r} in {index.filename}: {error}") from error
