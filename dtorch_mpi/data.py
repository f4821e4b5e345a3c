"""Training data that the workers read themselves: rank 0 sends row numbers, no rows."""

import operator
import os
import threading
from pathlib import Path

import h5py
import numpy as np
import torch

_open_files = threading.local()


class H5Dataset:
    """The rows of one dataset in an HDF5 file; a row is everything behind the first dim.

    Every worker must see the file under the same path. Raises ValueError when there is no such
    file, no such dataset in it, or one that holds no numbers or no rows.
    """

    def __init__(self, path, dataset):
        # Workers may have another working directory.
        self.path = str(Path(path).absolute())
        self.dataset = dataset
        stored = _open_dataset(self.path, dataset)
        if stored.dtype.kind not in "biuf":
            raise ValueError(
                f"dataset {dataset!r} of {self.path} holds {stored.dtype}, expected integers, "
                "floats or bools"
            )
        if not stored.shape or not stored.shape[0]:
            raise ValueError(
                f"dataset {dataset!r} of {self.path} has shape {stored.shape}, expected at least "
                "one row in its first dim"
            )
        self.shape = stored.shape

    def __len__(self):
        return self.shape[0]

    def batches(self, batch_size, *, seed, mesh=None, placements=None, device=None, epochs=1,
                drop_last=True, dtype=torch.int64, start=0):
        """Return an iterable over shuffled batches, tensors of shape (batch_size, *row).

        A batch is a `dtorch` tensor on `mesh` with `placements`, each worker reading the rows of
        its own shard; with `device` it is an ordinary tensor there, read in this process. The
        rows of a batch depend on `seed` and the batch's number only: the same on every mesh, and
        `start=n` goes on where n batches, counted over all epochs, were taken before.

        epochs: passes over the rows, each in its own order; None never ends.
        drop_last: leave out the rows at an epoch's end that fill no batch; else the last batch
            of an epoch may be smaller.

        An epoch's order takes 8 bytes a row of rank 0's memory. Raises ValueError for arguments
        out of range or that exclude each other, TypeError for a dtype that is none.
        """
        return Batches(self, batch_size, seed=seed, mesh=mesh, placements=placements,
                       device=device, epochs=epochs, drop_last=drop_last, dtype=dtype, start=start)


class Batches:
    """What `H5Dataset.batches` returns. Iterating again gives the same batches again."""

    def __init__(self, source, batch_size, *, seed, mesh, placements, device, epochs, drop_last,
                 dtype, start):
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"got dtype {dtype!r}, expected a torch.dtype such as torch.int64")
        if device is not None and (mesh is not None or placements is not None):
            raise ValueError(
                f"got device {device!r} together with a mesh or placements: leave out device for "
                "a tensor on the workers, the others for an ordinary tensor"
            )
        if placements is not None and mesh is None:
            raise ValueError(f"got placements {placements} without a mesh: give mesh too")
        self.source = source
        self.batch_size = _at_least(1, "batch_size", batch_size)
        self.seed = _at_least(0, "seed", seed)
        if self.seed >= 2**64:
            raise ValueError(f"got seed {seed}, expected one below 2**64")
        self.epochs = epochs if epochs is None else _at_least(1, "epochs", epochs)
        self.start = _at_least(0, "start", start)
        self.mesh = mesh
        self.placements = placements
        self.device = device
        self.dtype = dtype
        if drop_last and self.batch_size > len(source):
            raise ValueError(
                f"got batch_size {batch_size} for {len(source)} rows: no batch is full; choose "
                "a smaller one, or drop_last=False"
            )
        full, rest = divmod(len(source), self.batch_size)
        self.batches_per_epoch = full if drop_last or not rest else full + 1

    def __len__(self):
        if self.epochs is None:
            raise TypeError("batches with epochs=None have no length")
        return max(0, self.epochs * self.batches_per_epoch - self.start)

    def __iter__(self):
        epoch, first = divmod(self.start, self.batches_per_epoch)
        while self.epochs is None or epoch < self.epochs:
            order = epoch_order(len(self.source), self.seed, epoch)
            for number in range(first, self.batches_per_epoch):
                at = number * self.batch_size
                yield self._read(order[at : at + self.batch_size])
            epoch, first = epoch + 1, 0

    def _read(self, rows):
        path, dataset = self.source.path, self.source.dataset
        if self.device is not None:
            return read_rows(path, dataset, rows, self.dtype).to(self.device)
        # Here, so that reading without workers needs nothing of the runtime.
        from dtorch_mpi import kernels

        dtype_name = str(self.dtype).removeprefix("torch.")
        return kernels.call(
            "data.read_rows", (path, dataset, rows.tolist(), dtype_name),
            sizes=(len(rows), *self.source.shape[1:]), dtype=self.dtype, mesh=self.mesh,
            placements=self.placements,
        )


def epoch_order(num_rows, seed, epoch):
    """Return the order of the rows in an epoch, int64 of shape (num_rows,)."""
    key = np.array([seed, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(num_rows)


def read_rows(path, dataset, rows, dtype):
    """Read rows of an HDF5 dataset, in the order given, into a CPU tensor (len(rows), *row).

    Raises ValueError when the file, the dataset or a row does not exist.
    """
    stored = _open_dataset(path, dataset)
    # HDF5 wants increasing, distinct row numbers.
    distinct, back = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
    if len(distinct) and not 0 <= distinct[0] <= distinct[-1] < stored.shape[0]:
        wrong = distinct[0] if distinct[0] < 0 else distinct[-1]
        raise ValueError(
            f"row {wrong} asked of dataset {dataset!r} in {path}, which has {stored.shape[0]} "
            "rows: was the file replaced while it was in use?"
        )
    data = stored[distinct][back] if len(distinct) else stored[:0]
    native = data.astype(data.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(native).to(dtype)


def _open_dataset(path, name):
    """Return the h5py dataset, from a file that this thread keeps open for reading."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    # A file written anew under the same name is another one, and a handle is no good after fork.
    identity = (os.getpid(), status.st_ino, status.st_mtime_ns)
    opened = _open_files.__dict__.setdefault("by_path", {})
    known, file = opened.get(path, (None, None))
    if known != identity:
        # HDF5 would hand out the file it still has open.
        opened.pop(path, None)
        file = None
        file = _open_file(path)
        opened[path] = (identity, file)
    stored = file.get(name)
    if not isinstance(stored, h5py.Dataset):
        names = [key for key, value in file.items() if isinstance(value, h5py.Dataset)]
        raise ValueError(f"no dataset {name!r} in {path}; there are: {', '.join(names) or 'none'}")
    return stored


def _open_file(path):
    # HDF5 wants one way of locking for all handles of a process on a file: h5py's default, so
    # that users can open the file beside us; without locks where those fail or theirs has none.
    try:
        return h5py.File(path, "r", locking="best-effort")
    except OSError:
        try:
            return h5py.File(path, "r", locking=False)
        except OSError as error:
            raise ValueError(f"cannot read {path} as an HDF5 file: {error}") from error


def _at_least(least, name, value):
    number = operator.index(value)
    if number < least:
        raise ValueError(f"got {name} {value}, expected at least {least}")
    return number
