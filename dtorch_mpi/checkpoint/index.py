"""index.h5: every tensor under its name, as if it lay there whole.

What workers have written is stitched together by virtual datasets, whose files are named relative
to the index, so that the folder can be moved. Tensors of the program's own memory are in it.
"""

import math

import h5py
import numpy as np

from .elements import dtype_name, dtype_of, stored_dtype, to_array
from .errors import CheckpointError, reason_of
from .new_file import NewFile

INDEX = "index.h5"


def write(folder, distributed, own):
    """distributed: (name, dtype, sizes, [(file, offsets, sizes)]) of each tensor that lies in
    workers' files, under the same name. own: {name: CPU tensor}.
    """
    with NewFile(folder / INDEX) as new:
        for name, dtype, sizes, parts in distributed:
            if not sizes:
                # A virtual dataset has dims.
                new.hdf5[name] = h5py.ExternalLink(parts[0][0], name)
                continue
            note_dtype(_stitched(new.hdf5, name, dtype, sizes, parts), dtype)
        for name, tensor in own.items():
            write_part(new, name, tensor)


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


def write_part(new, name, part):
    """Write a tensor, or a worker's part of one, into a NewFile."""
    note_dtype(new.hdf5.create_dataset(name, data=to_array(part)), part.dtype)
    new.check()


def note_dtype(dataset, dtype):
    dataset.attrs["dtype"] = dtype_name(dtype)


def open_index(folder):
    """The index as an h5py.File; raises CheckpointError for one that is none."""
    path = folder / INDEX
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    # Of the files it names too. With a buffer HDF5 reads whole rows for a few of their columns,
    # and each worker all of the file.
    access.set_sieve_buf_size(0)
    try:
        # Without locks where the file system has none.
        access.set_file_locking(True, True)
        try:
            return h5py.File(h5py.h5f.open(bytes(path), h5py.h5f.ACC_RDONLY, access))
        except OSError:
            access.set_file_locking(False, True)
            return h5py.File(h5py.h5f.open(bytes(path), h5py.h5f.ACC_RDONLY, access))
    except OSError as error:
        raise CheckpointError(f"cannot read {path} as an HDF5 file: {reason_of(error)}") from error


def dataset_of(index, name):
    """(h5py.Dataset, torch.dtype) of a tensor."""
    try:
        dataset = index[name]
        return dataset, dtype_of(dataset.attrs["dtype"])
    except (KeyError, OSError) as error:
        raise CheckpointError(f"no tensor {name!r} in {index.filename}: {error}") from error
