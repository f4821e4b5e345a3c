"""A worker's share of a save: it takes its parts of tensors where they come by in the program's
order, and writes them into a file of its own.
"""

import json
import socket
import threading
from pathlib import Path

import torch

from ..kernels.registry import kernel
from . import index, manifest, together
from .errors import reason_of
from .new_file import NewFile
from .parts import Layout

ANSWER_BYTES = 4096
_here = threading.local()  # .share: of the save under way, or the last one


def file_of(worker):
    return f"worker-{worker:05d}.h5"


class Share:
    """What one worker has to write.

    tensors: (name, dtype name, sizes, number of the mesh, placements, number of the copy) of each.
    copies: whether to copy each part as it is taken; else nobody may write to them before write().
    num_workers: where they write one file together, else None.
    """

    def __init__(self, worker, folder, meshes, tensors, copies, num_workers):
        self._worker, self._folder, self._copies = worker, Path(folder), copies
        self._num_workers = num_workers
        self._tensors = {name: (dtype, sizes) for name, dtype, sizes, *_ in tensors}
        self._taken = {}
        self._expected = {}  # number of a tensor -> its name, and where this worker's part is
        for number, (name, _, sizes, mesh, packed, copy) in enumerate(tensors):
            own = Layout(*meshes[mesh], packed).own_part(sizes, copy, worker)
            if own is not None:
                self._expected[number] = name, *own
        self.answer = {"state": "taking"}

    def take(self, number, part):
        if number not in self._expected:
            return
        self._taken[number] = part.to("cpu", copy=True) if self._copies else part

    def write(self):
        """Write all that was taken; never raises, the answer says what came of it."""
        self.answer = {"state": "writing"}
        path = self._folder / (file_of(self._worker) if self._num_workers is None else
                               together.FILE)  # fmt: skip
        try:
            found = self._write(path)
            self.answer = {"state": "written", "file": found and path.name, **(found or {})}
        except Exception as error:
            where = f"worker {self._worker} on {socket.gethostname()} could not write {path}"
            self.answer = {"state": "failed", "reason": f"{where}: {reason_of(error)}"[:600]}
        self._taken = {}

    def _write(self, path):
        """The file's entry, or None where there is none of this worker."""
        lacking = [name for number, (name, *_) in self._expected.items()
                   if number not in self._taken]  # fmt: skip
        failure = None
        if lacking:
            failure = RuntimeError(
                f"no value of {lacking[0]!r} came: an operator that makes it has failed; reading "
                "the tensor tells which and why"
            )
        if self._num_workers is not None:
            parts = {name: (offsets, self._taken[number])
                     for number, (name, offsets, _) in self._expected.items()
                     if failure is None}  # fmt: skip
            describes = together.write(path, self._num_workers, self._tensors, failure or parts)
            return manifest.entry(path) if describes else None
        if failure is not None:
            raise failure
        if not self._expected:
            return None
        with NewFile(path) as new:
            for number, (name, _, sizes) in self._expected.items():
                part = self._taken.pop(number)
                assert list(part.shape) == sizes, (name, part.shape, sizes)
                index.write_part(new, name, part)
        return manifest.entry(path)


def row(context, values, dtype=torch.uint8):
    """This worker's row of an answer; values: JSON, of some 600 characters at most."""
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
def _begin(context, folder, meshes, tensors, copies, num_workers):
    _here.share = Share(worker_of(context), folder, meshes, tensors, copies, num_workers)
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
