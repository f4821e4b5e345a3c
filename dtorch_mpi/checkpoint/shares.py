"""The program's side of what workers do for a checkpoint."""

import json
import sys
import threading
import time

import torch

from .. import _core
from ..kernels import python_kernel
from ..kernels.timeline import on_all_workers
from ..mesh import has_partial, packed_of, sharding_number, sharding_of, without_partial
from . import together, worker_writing
from .elements import dtype_name
from .errors import CheckpointError
from .parts import Layout, choose_copies
from .worker_writing import ANSWER_BYTES, file_of

# A user's operator as far as capture goes: workers call it with their parts as they lie.
_SCHEMA = "dtorch_checkpoint::take(Tensor part, int number) -> ()"
_take = python_kernel(_SCHEMA)(worker_writing.take)
_SECONDS_AFTER_FAILURE = 5  # that a program which has failed gives a save under way


def _take_any_part():
    """Have parts taken as they lie, empty ones too."""
    from ..sharding.formulas import by_formula
    from ..sharding.rules import OWN_RULES, OwnRule

    # At the first save: loading the rules takes a second.
    OWN_RULES.setdefault(_take.op, OwnRule(by_formula(_take.op, "... -> !"), empty=True))


class Shares:
    """What the workers write of one checkpoint.

    tensors: {name: dtorch tensor}. single_file: write one together, where that is possible.
    """

    def __init__(self, running, tensors, single_file):
        self._running = running
        self._in_one = single_file and together.is_possible(running)
        self._tensors = {name: _summed(tensor.detach()) for name, tensor in tensors.items()}
        self._meshes = []  # (shape, workers)
        known = {}  # number of a sharding -> (Layout, number of the mesh)
        layouts = [
            known.get(number) or known.setdefault(number, self._layout(number))
            for number in map(_core.sharding, self._tensors.values())
        ]
        copies = choose_copies([
            (layout, tensor.numel() * tensor.element_size())
            for (layout, _), tensor in zip(layouts, self._tensors.values(), strict=True)
        ])  # fmt: skip
        self._plan, self.distributed = [], []
        for (name, tensor), (layout, mesh), copy in zip(
            self._tensors.items(), layouts, copies, strict=True
        ):
            sizes = list(tensor.shape)
            self._plan.append(
                [name, dtype_name(tensor.dtype), sizes, mesh, layout.packed, copy]
            )
            parts = self._parts(sizes, layout, copy)
            self.distributed.append((name, tensor.dtype, sizes, parts))

    def _layout(self, number):
        """(Layout, number of the mesh) of a sharding's number."""
        if number == 0:
            workers = list(range(self._running.num_workers))
            shape, packed = [len(workers)], [0]
        else:
            shape, packed = packed_of(number)
            workers = sharding_of(number)[0].mesh.flatten().tolist()
        if (shape, workers) not in self._meshes:
            self._meshes.append((shape, workers))
        return Layout(shape, workers, packed), self._meshes.index((shape, workers))

    def _parts(self, sizes, layout, copy):
        """[(file, offsets, sizes)] of a tensor."""
        if self._in_one:
            return [(together.FILE, [0] * len(sizes), sizes)]
        return [(file_of(worker), *part) for worker, *part in layout.parts(sizes, copy)]

    def sharded_dims(self):
        """{name: the dim that each axis of its mesh cuts, None where it is replicated}."""
        found = {}
        for name, tensor in self._tensors.items():
            _, placements = sharding_of(_core.sharding(tensor))
            found[name] = [p.dim if p.is_shard() else None for p in placements or ()]
        return found

    def issue(self, folder, in_background):
        """Have the tensors taken as they are at this point of the program, and written."""
        _take_any_part()
        num_workers = self._running.num_workers if self._in_one else None
        self._ask("begin", [str(folder), self._meshes, self._plan, in_background, num_workers])
        with torch.no_grad():
            for number, tensor in enumerate(self._tensors.values()):
                _take(tensor, number)
        self._ask("write", [in_background])
        self._tensors = None  # what is not the program's any more need not wait for the files

    def wait(self):
        """{file: entry} once all workers have written; raises the failure of a worker."""
        future = self._ask("answer", []).to_torch_async()
        return self._files(_texts(future.get()))

    def wait_in_background(self):
        """The same from a thread beside the program, whose failures it leaves to the program."""
        delay, until = 0.005, None
        while True:
            future = self._ask("answer", []).to_torch_async()
            while not future.is_ready():
                until = self._deadline(until)
                time.sleep(0.002)
            value = future.value_in_background()
            answers = None if value is None else _texts(value)
            if answers and all(a["state"] in ("written", "failed") for a in answers):
                return self._files(answers)
            until = self._deadline(until)
            time.sleep(delay)
            delay = min(2 * delay, 1.0)

    def _deadline(self, until):
        """Raises where waiting is pointless: the workers are gone, or the program has failed."""
        self._running.check()
        failed = getattr(sys, "last_value", None) is not None
        if self._running.closed or until is not None and time.monotonic() > until:
            raise CheckpointError("the program ended before the workers had written all of it")
        if until is None and failed and not threading.main_thread().is_alive():
            until = time.monotonic() + _SECONDS_AFTER_FAILURE
        return until

    def _files(self, answers):
        failed = [answer["reason"] for answer in answers if answer["state"] == "failed"]
        if failed:
            more = f" (and {len(failed) - 1} more workers failed)" if failed[1:] else ""
            raise CheckpointError(failed[0] + more)
        return {
            answer["file"]: {"size": answer["size"], "sha256": answer["sha256"]}
            for answer in answers
            if answer["file"] is not None
        }

    def _ask(self, name, arguments):
        return ask(name, arguments, self._running)


def ask(name, arguments, running):
    """Run a worker's part on all of them; returns the dtorch tensor of their answers."""
    return on_all_workers(
        f"checkpoint.{name}", arguments, running.num_workers, ANSWER_BYTES, torch.uint8
    )


def answers(name, arguments, running):
    """Their answers, a dict from each; waits. Raises WorkerError."""
    return _texts(ask(name, arguments, running).to_torch())


def _texts(rows):
    return [json.loads(bytes(row.tolist()).rstrip(b"\0")) for row in rows]


def _summed(tensor):
    """The tensor without partial sums, which are no one's part of the value."""
    mesh, placements = sharding_of(_core.sharding(tensor))
    if mesh is None or not has_partial(placements):
        return tensor
    whole = sharding_number(mesh, without_partial(placements))
    return _core.redistribute(tensor, _core.sharding(tensor), whole)

