"""Training data that the workers read themselves: rank 0 sends row numbers, no rows."""

import collections
import functools
import itertools
import operator
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh

from .mesh import GivenPlacements
from .read_ahead import ReadAhead

_open_files = threading.local()


class H5Dataset:
    """The rows of one dataset in an HDF5 file; a row is everything behind the first dim.

    Every worker must see the file under the same path. Raises ValueError when there is no such
    file, no such dataset in it, or one that holds no numbers or no rows.
    """

    def __init__(self, path: str | os.PathLike, dataset: str) -> None:
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

    def __len__(self) -> int:
        return self.shape[0]

    def batches(self, batch_size: int, *, seed: int, mesh: DeviceMesh | None = None,
                placements: GivenPlacements = None, device: torch.device | str | None = None,
                epochs: int | None = 1, drop_last: bool = True, dtype: torch.dtype = torch.int64,
                start: int = 0, start_row: int | None = None, prefetch: int = 2) -> "Batches":
        """Return an iterable over shuffled batches, tensors of shape (batch_size, *row).

        A batch is a `dtorch` tensor on `mesh` with `placements`, each worker reading the rows of
        its own shard; with `device` it is an ordinary tensor there, read in this process. The
        rows of a batch depend on `seed` and the batch's number only: the same on every mesh, and
        `start=n` goes on where n batches, counted over all epochs, were taken before.

        epochs: passes over the rows, each in its own order; None never ends.
        drop_last: leave out the rows at an epoch's end that fill no batch; else the last batch
            of an epoch may be smaller.
        start_row: in place of start, how many rows were taken before: epochs * len(dataset) and
            those of the last one. The batches then begin at that row, of any size.
        prefetch: how many batches are read ahead, in a thread of each worker; 0: none.

        What it returns has state_dict() and load_state_dict(), so it can be part of a checkpoint:
        `dt.checkpoint.save(path, {"data": batches, ...})` between two batches holds which row comes
        next.

        An epoch's order takes 8 bytes a row of rank 0's memory. Raises ValueError for arguments
        out of range or that exclude each other, TypeError for a dtype that is none.
        """
        return Batches(self, batch_size, seed=seed, mesh=mesh, placements=placements,
                       device=device, epochs=epochs, drop_last=drop_last, dtype=dtype, start=start,
                       start_row=start_row, prefetch=prefetch)


class Batches:
    """What `H5Dataset.batches` returns. Iterating again gives the same batches again."""

    def __init__(self, source: H5Dataset, batch_size: int, *, seed: int, mesh: DeviceMesh | None,
                 placements: GivenPlacements, device: torch.device | str | None,
                 epochs: int | None, drop_last: bool, dtype: torch.dtype, start: int,
                 start_row: int | None, prefetch: int) -> None:
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
        self.prefetch = _at_least(0, "prefetch", prefetch)
        self.mesh = mesh
        self.placements = placements
        self.device = device
        self.dtype = dtype
        if drop_last and self.batch_size > len(source):
            raise ValueError(
                f"got batch_size {batch_size} for {len(source)} rows: no batch is full; choose "
                "a smaller one, or drop_last=False"
            )
        self.drop_last = drop_last
        self.batches_per_epoch = self._batches_of(len(source))
        start = _at_least(0, "start", start)
        if start_row is None:
            epoch, number = divmod(start, self.batches_per_epoch)
            self._begin = epoch, number * self.batch_size
        elif start:
            raise ValueError(f"got start {start} together with start_row {start_row}: give one")
        else:
            self._begin = divmod(_at_least(0, "start_row", start_row), len(source))
        self._position = self._begin  # (epoch, row in its order) that comes next

    def _batches_of(self, num_rows):
        full, rest = divmod(num_rows, self.batch_size)
        return full if self.drop_last or not rest else full + 1

    def __len__(self) -> int:
        """How many batches an iteration gives."""
        if self.epochs is None:
            raise TypeError("batches with epochs=None have no length")
        epoch, row = self._begin
        if epoch >= self.epochs:
            return 0
        left = self._batches_of(len(self.source) - row)
        return left + (self.epochs - epoch - 1) * self.batches_per_epoch

    def state_dict(self) -> dict[str, int]:
        """Where the latest iteration is: {"epoch", "row", "seed", "num_rows"}, integers.

        row: of the epoch's order, that the next batch begins with.
        """
        epoch, row = self._position
        return {"epoch": epoch, "row": row, "seed": self.seed, "num_rows": len(self.source)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Have iterations begin there. Raises ValueError where the rows have another order."""
        for name, own in (("seed", self.seed), ("num_rows", len(self.source))):
            if state[name] != own:
                raise ValueError(
                    f"the state is of batches with {name} {state[name]}, and these have {own}: the "
                    "rows would come in another order"
                )
        self._begin = self._position = state["epoch"], state["row"]

    def __iter__(self) -> Iterator[torch.Tensor]:
        reader = _Here(self) if self.device is not None else _OnWorkers(self)
        try:
            upcoming = self._upcoming()
            window = collections.deque(itertools.islice(upcoming, 1 + self.prefetch))
            named = 0  # batches that the reader knows of
            for number in itertools.count():
                if not window:
                    return
                rows, position = window[0]
                # Those of another size come at an epoch's end, and are read when they are due.
                due = [(number, rows)] + [
                    (later, its_rows)
                    for later, (its_rows, _) in enumerate(window, start=number)
                    if later >= max(named, number + 1) and len(its_rows) == len(rows)
                ]
                named = number + len(window)
                batch = reader.read(due)
                self._position = position
                yield batch
                window.popleft()
                window.extend(itertools.islice(upcoming, 1))
        finally:
            reader.stop()

    def _upcoming(self):
        """(rows, position behind them) of each batch."""
        epoch, row = self._begin
        while self.epochs is None or epoch < self.epochs:
            order = epoch_order(len(self.source), self.seed, epoch)
            for _ in range(self._batches_of(len(order) - row)):
                rows = order[row : row + self.batch_size]
                row += len(rows)
                yield rows, (epoch, row)
            epoch, row = epoch + 1, 0


class _Here:
    """Reads batches in this process."""

    def __init__(self, batches):
        self._batches, self._ahead = batches, ReadAhead()

    def read(self, due):
        """The first of `due`, (number, rows) of batches; begins to read the others."""
        (number, rows), *following = due
        for later, its_rows in following:
            self._ahead.begin(later, functools.partial(self._read, its_rows))
        return self._ahead.take(number, functools.partial(self._read, rows)).to(
            self._batches.device
        )

    def _read(self, rows):
        source = self._batches.source
        return read_rows(source.path, source.dataset, rows, self._batches.dtype)

    def stop(self):
        self._ahead.stop()


class _OnWorkers:
    """Has each worker read its own rows of batches."""

    def __init__(self, batches):
        self._batches, self._iteration = batches, os.urandom(8)

    def read(self, due):
        """The first of `due`, (number, rows) of batches; workers begin to read the others."""
        # Here, so that reading without workers needs nothing of the runtime.
        from dtorch_mpi import kernels

        batches, source = self._batches, self._batches.source
        # Half the bytes, for all but huge datasets.
        width = np.int32 if len(source) < 2**31 else np.int64
        packed = [(number.to_bytes(8), rows.astype(width).tobytes()) for number, rows in due]
        return kernels.call(
            "data.read_rows",
            (source.path, source.dataset, str(batches.dtype).removeprefix("torch."),
             self._iteration, packed),
            sizes=(len(due[0][1]), *source.shape[1:]), dtype=batches.dtype, mesh=batches.mesh,
            placements=batches.placements,
        )  # fmt: skip

    def stop(self):
        pass


def epoch_order(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of the rows in an epoch, int64 of shape (num_rows,)."""
    key = np.array([seed, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(num_rows)


def read_rows(
    path: str | os.PathLike, dataset: str, rows: Sequence[int] | np.ndarray, dtype: torch.dtype
) -> torch.Tensor:
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
