"""Saving: what the program does, and in which order things reach the disk."""

import asyncio
import json
import operator
import os
import shutil
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, Literal

from .. import runtime
from . import folder, index, manifest
from .errors import CheckpointError, reason_of
from .shares import Shares
from .tree import flatten

_under_way = None  # the save in the background, until somebody has asked what came of it


class SaveFuture:
    """A checkpoint on its way to the disk; `get()` gives its folder, a pathlib.Path."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._path = None
        self._error = None
        self._told = False

    def is_ready(self) -> bool:
        """Whether get() would return at once. Never waits."""
        return self._done.is_set()

    def wait(self, timeout_ms: float) -> Path:
        """Wait at most `timeout_ms` milliseconds and return the checkpoint's folder.

        Raises TimeoutError if it is not whole by then, and CheckpointError if it failed.
        """
        if not self._done.wait(timeout_ms / 1e3):
            raise TimeoutError(
                f"the checkpoint was not whole after {timeout_ms} ms; ask again"
            )
        return self._result()

    def __await__(self) -> Generator[Any, None, Path]:
        while not self.is_ready():
            yield from asyncio.sleep(0.01).__await__()
        return self.get()

    def get(self) -> Path:
        """Wait until the checkpoint is whole and return its folder. Raises CheckpointError."""
        self._done.wait()
        return self._result()

    def _result(self):
        self._told = True
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._path

    def _untold(self):
        """The error that nobody has been told of, or None; waits."""
        self._done.wait()
        error = None if self._told else self._error
        self._told = True
        return error

    def _settle(self, path=None, error=None):
        self._path, self._error = path, error
        self._done.set()


def save(path: str | os.PathLike, state: dict, *, keep: int | None = None,
         single_file: bool = False) -> Path:
    """Write a checkpoint and return its folder, a pathlib.Path, once it is on the disk.

        dt.checkpoint.save("checkpoints", {"model": model, "optimizer": optimizer, "step": step})

    path (str or os.PathLike): the folder that the checkpoints are kept in, one under each number;
    made if it is not there. All workers and the program must see it under this path, and one
    program at a time may save there.

    state (dict): nested dicts, lists and tuples of tensors, numbers, text, bytes, None, dtypes, and
    objects with state_dict() and load_state_dict(): torch.nn.Module, torch.optim.Optimizer,
    schedulers, `RandomState`.

    keep (int or None): how many checkpoints to keep, this one included; None: all.

    single_file (bool): the workers write one file together, through HDF5's mpio driver; only where
    h5py has MPI and the workers are processes, else each writes its own as by default.

    Each worker writes the parts of tensors that it holds, and one worker alone what several hold.
    Nothing is gathered, but partial sums are reduced. Tensors of the program's own memory are
    written by the program. A checkpoint that could not be written leaves the ones before it as
    they are.

    Raises CheckpointError where a file could not be written, TypeError for what a checkpoint can't
    hold, ValueError for a `keep` below 1, and WorkerError for an operator that failed before.
    """
    _finish_former("wait")
    return _Saving(path, state, keep, single_file, in_background=False).run()


def save_async(path: str | os.PathLike, state: dict, *, keep: int | None = None,
               single_file: bool = False,
               busy: Literal["wait", "refuse"] = "wait") -> SaveFuture:
    """Begin to write a checkpoint and return a SaveFuture; the program goes on.

    It holds the state as it is at this call: workers copy their parts here in the program's order,
    into their own memory (of the host), and write beside what follows.

    busy (str): what to do where the former one is still being written; "wait" for it, or "refuse"
    this one, with a CheckpointError. A former one that has failed, and whose error nobody has seen,
    raises it here. The program's end and `dt.shutdown()` wait for the last one; a program that has
    failed waits too, but where its workers do no more, for some seconds only.

    Else as `save`.
    """
    global _under_way
    if busy not in ("wait", "refuse"):
        raise ValueError(f"busy is {busy!r}: expected 'wait' or 'refuse'")
    _finish_former(busy)
    saving = _Saving(path, state, keep, single_file, in_background=True)
    _under_way = saving.begin()
    return _under_way


def _finish_former(busy):
    global _under_way
    if _under_way is None:
        return
    if busy == "refuse" and not _under_way.is_ready():
        raise CheckpointError(
            "the former checkpoint is still being written, and busy='refuse' asks for no wait: "
            "save less often, or with busy='wait'"
        )
    former, _under_way = _under_way, None
    error = former._untold()
    if error is not None:
        raise error.with_traceback(None)


def finish():
    """Wait for the save in the background; returns an error that nobody has seen, or None."""
    global _under_way
    former, _under_way = _under_way, None
    return None if former is None else former._untold()


def _forget():
    """In a forked child: the thread that writes is not here."""
    global _under_way
    _under_way = None


runtime.before_shutdown.append(finish)
os.register_at_fork(after_in_child=_forget)


class _Saving:
    """One save."""

    def __init__(self, path, state, keep, single_file, in_background):
        if keep is not None and operator.index(keep) < 1:
            raise ValueError(f"keep is {keep}: expected at least 1, or None to keep all")
        self._keep, self._in_background = keep, in_background
        self._encoded, tensors = flatten(state)
        distributed = {n: t for n, t in tensors.items() if t.device.type == "dtorch"}
        self._own = {n: t.detach() for n, t in tensors.items() if n not in distributed}
        if in_background:
            self._own = {name: _copy(tensor) for name, tensor in self._own.items()}
        self._shares = None
        if distributed:
            self._shares = Shares(runtime.runtime(), distributed, single_file)
        try:
            self._aside, self._final = folder.begin(path)
        except OSError as error:
            raise _failed(path, error) from error
        if self._shares is not None:
            with _removing(self._aside):
                self._sharded_dims = self._shares.sharded_dims()
                self._shares.issue(self._aside, in_background)
        else:
            self._sharded_dims = {}

    def run(self):
        with _removing(self._aside):
            return self._complete(self._shares and self._shares.wait)

    def begin(self):
        future = SaveFuture()

        def complete():
            try:
                with _removing(self._aside):
                    path = self._complete(self._shares and self._shares.wait_in_background)
                future._settle(path=path)
            except BaseException as error:
                future._settle(error=error)

        # Not a daemon: the interpreter waits for it before it runs what is registered at exit.
        threading.Thread(target=complete, name="dtorch-checkpoint").start()
        return future

    def _complete(self, wait):
        files = wait() if wait else {}
        distributed = self._shares.distributed if self._shares else []
        self._check_visible(files)
        try:
            index.write(self._aside, distributed, self._own)
            manifest.write_text(
                self._aside / folder.STATE,
                json.dumps({"state": self._encoded, "sharded_dims": self._sharded_dims}, indent=1),
            )
            for name in (index.INDEX, folder.STATE):
                files[name] = manifest.entry(self._aside / name)
            manifest.write(self._aside, files)
            folder.publish(self._aside, self._final)
            if self._keep is not None:
                folder.prune(self._final.parent, self._keep)
        except OSError as error:
            raise _failed(self._aside, error) from error
        return self._final

    def _check_visible(self, files):
        """What workers have written must be here too: their nodes may have disks of their own."""
        for name in files:
            if not (self._aside / name).exists():
                raise CheckpointError(
                    f"a worker has written {self._aside / name}, and the program does not see it: "
                    "save to a file system that all nodes share"
                )


def _copy(tensor):
    copy = tensor.cpu()
    return copy.clone() if copy.data_ptr() == tensor.data_ptr() else copy


def _failed(path, error):
    path = error.filename or path
    return CheckpointError(f"could not write the checkpoint {path}: {reason_of(error)}")


class _removing:  # noqa: N801 -- reads as what it does
    """Removes the folder aside where the block raises."""

    def __init__(self, aside):
        self._aside = aside

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            shutil.rmtree(self._aside, ignore_errors=True)
