"""The fused kernels of this process: from a folder on disk, which other jobs may share."""

import hashlib
import itertools
import json
import os
import platform
import threading
import time
from pathlib import Path

import torch

from .. import _worker
from ..kernels.registry import dtype_number, kernel
from .compile_process import PROGRAM, CompileProcess
from .spec import EXTENTS, dtypes_of, number_of

MAKING, READY, FAILED = range(3)
MOST_SECONDS = 600  # for a kernel to be there
MOST_KERNELS = 64  # of a process
_DIGEST = 32


def default_folder():
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "dtorch_mpi"


def _machine():
    """All that the machine code depends on, but for what it is to do."""
    flags = ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        flags = platform.processor()
    program = hashlib.sha256()
    for file in sorted(PROGRAM.glob("*.py")):
        program.update(file.read_bytes())
    return [torch.__version__, torch.version.git_version, torch.backends.cpu.get_cpu_capability(),
            platform.machine(), flags, os.environ.get("CXX", ""), program.hexdigest()]  # fmt: skip


def _is_whole(path):
    """Whether the file is as it was written: one cut short would end the process at a touch."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(data[:-_DIGEST]).digest() == data[-_DIGEST:]


class Kernels:
    """Loads kernels, and has those compiled that the folder lacks. For any thread."""

    def __init__(self, folder, nice):
        self.folder = folder
        self._lock = threading.Lock()
        self._states = {}  # packed description -> state
        self._since = {}  # of those in the making
        self._compiler = CompileProcess(folder, nice)
        self._machine = None

    def state(self, text):
        """MAKING, READY or FAILED; the first time that a kernel is asked for, it is begun."""
        with self._lock:
            self._look()
            if text not in self._states:
                self._states[text] = self._begin(text)
            return self._states[text]

    def stop(self):
        """Leave off what is in the making."""
        with self._lock:
            self._compiler.stop()
            for text in self._since:
                self._states.pop(text)
            self._since.clear()

    def _path(self, text):
        if self._machine is None:
            self._machine = _machine()
        key = hashlib.sha256(json.dumps([text, *self._machine]).encode()).hexdigest()
        return self.folder / f"fused-{key[:40]}.so"

    def _begin(self, text):
        path = self._path(text)
        if self._load(text, path):
            return READY
        if len(self._states) >= MOST_KERNELS or path.with_suffix(".refused").exists():
            return FAILED
        try:
            path.unlink(missing_ok=True)  # a damaged one
            self._compiler.request(path, json.loads(text))
        except OSError:
            return FAILED
        self._since[text] = time.monotonic()
        return MAKING

    def _load(self, text, path):
        if not _is_whole(path):
            return False
        spec = json.loads(text)
        made = zip(spec["dtypes"], spec.get("extents", itertools.repeat("whole")), strict=False)
        inputs, outputs = (
            [(dtype_number(getattr(torch, name)), EXTENTS.index(extent)) for name, extent in found]
            for found in (spec["inputs"], made)
        )
        numbers = list(map(dtype_number, dtypes_of(spec["numbers"])))
        try:
            _worker.load_fused_kernel(number_of(text), str(path), inputs, numbers, outputs)
        except RuntimeError:
            return False
        return True

    def _look(self):
        """Take in what the compile process has done."""
        done = {path for path, _ in self._compiler.answers()}
        now = time.monotonic()
        for text, since in list(self._since.items()):
            path = self._path(text)
            if str(path) in done:
                self._states[text] = READY if self._load(text, path) else FAILED
            elif now - since > MOST_SECONDS:
                self._states[text] = FAILED
            else:
                continue
            del self._since[text]
        if not self._since:
            self._compiler.stop()


_kernels = None


def configure(settings):
    """Have this process keep its kernels where the settings say."""
    global _kernels
    folder = Path(settings.cache) if settings.cache else default_folder()
    if _kernels is None or _kernels.folder != folder:
        _kernels = Kernels(folder, settings.compile_nice)


def of_process():
    return _kernels


@kernel("dtorch.fused_kernels")
def _states_here(context, texts):
    """On a worker: how far its process is with kernels."""
    ((_, rows), _), = context.local_slices
    states = [_kernels.state(text) for text in texts]
    return torch.tensor([states] * rows, dtype=torch.int64)
