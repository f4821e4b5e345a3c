"""A worker's share of a save: it takes its parts of tensors where they come by in the program's
order, and writes them into a file of its own.
"""

import json
import os
import socket
import threading
from pathlib import Path

import h5py
import torch

from ..kernels.registry import kernel
from . import index, manifest
from .parts import Layout

ANSWER_BYTES = 4096
_here = threading.local()  # .share: of the save under way, or the last one


def file_of(worker):
    return f"worker-{worker:05d}.h5"


class Share:
    """What one worker has to write.

    tensors: (name, sizes, number of the mesh, placements, number of the copy) of each. copies:
    whether to copy each part as it is taken; else nobody may write to them before write().
    """

    def __init__(self, worker, folder, meshes, tensors, copies):
        self._worker, self._folder, self._copies = worker, Path(folder), copies
        self._taken = {}
        self._expected = {}
        for number, (name, sizes, mesh, packed, copy) in enumerate(tensors):
            own = Layout(*meshes[mesh], packed).own_part(sizes, copy, worker)
            if own is not None:
                self._expected[number] = name, tuple(own[1])
        self.answer = {"state": "taking"}

    def take(self, number, part):
        if number not in self._expected:
            return
        self._taken[number] = part.detach().clone().cpu() if self._copies else part.detach()

    def write(self):
        """Write all that was taken; never raises, the answer says what came of it."""
        self.answer = {"state": "writing"}
        try:
            self.answer = {"state": "written", **self._write()}
        except Exception as error:
            path = self._folder / file_of(self._worker)
            # HDF5 puts a page of details after its first line.
            reason = str(error).partition("\n")[0] or type(error).__name__
            if isinstance(error, OSError) and error.errno:
                reason = f"{os.strerror(error.errno)} ({reason})"
            self.answer = {
                "state": "failed",
                "reason": f"worker {self._worker} on {socket.gethostname()} could not write "
                          f"{path}: {reason}"[:800],
            }  # fmt: skip
        self._taken = {}

    def _write(self):
        lacking = [name for number, (name, _) in self._expected.items()
                   if number not in self._taken]  # fmt: skip
        if lacking:
            raise RuntimeError(
                f"no value of {lacking[0]!r} came, of {len(lacking)} tensors: an operator that "
                "makes it has failed"
            )
        if not self._expected:
            return {"file": None}
        path = self._folder / file_of(self._worker)
        with h5py.File(path, "x") as file:
            for number, (name, sizes) in self._expected.items():
                part = self._taken.pop(number)
                assert tuple(part.shape) == sizes, (name, part.shape, sizes)
                index.write_part(file, name, part)
        manifest.sync(path)
        return {"file": path.name, **manifest.entry(path)}


def row(context, values, dtype=torch.uint8):
    """This worker's row of an answer; values: JSON."""
    text = json.dumps(values).encode()
    ((_, rows), (_, width)), = context.local_slices
    assert len(text) <= width, text
    answer = torch.zeros(rows, width, dtype=dtype)
    answer[:, : len(text)] = torch.frombuffer(bytearray(text), dtype=dtype)
    return answer


def worker_of(context):
    ((worker, _), _), = context.local_slices
    return worker


@kernel("dtorch.checkpoint.begin")
def _begin(context, folder, meshes, tensors, copies):
    _here.share = Share(worker_of(context), folder, meshes, tensors, copies)
    return row(context, {})


def take(part, number):
    """The function of the operator that hands a tensor's part over."""
    _here.share.take(number, part)


@kernel("dtorch.checkpoint.write")
def _write(context, in_background):
    share = _here.share
    if in_background:
        threading.Thread(target=share.write, name="dtorch-checkpoint", daemon=True).start()
    else:
        share.write()
    return row(context, {})


@kernel("dtorch.checkpoint.answer")
def _answer(context):
    return row(context, _here.share.answer)
