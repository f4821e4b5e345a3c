"""The fused kernels of this process: from a folder on disk, which other jobs may share.

Those for the CPU are libraries, those for a GPU machine code that Triton makes.
"""

import hashlib
import itertools
import json
import os
import platform
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch

from .. import _worker
from ..kernels.registry import dtype_number, kernel
from ..launch.placement import accelerators
from .compile_process import PROGRAM, CompileProcess
from .spec import EXTENTS, dtypes_of, number_of

MAKING, READY, FAILED = range(3)
MOST_SECONDS = 600  # for a kernel to be there
MOST_KERNELS = 64  # of a process
_DIGEST = 32


def default_folder():
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "dtorch_mpi"


class Gpu(NamedTuple):
    """A GPU of CUDA in this process. capability: 10 times its major plus its minor number."""

    index: int
    capability: int


def gpu_of_this_thread():
    """The Gpu that the calling thread works on; None where that is not one of CUDA."""
    if torch.version.hip is not None or accelerators()[0] != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability()
    return Gpu(torch.cuda.current_device(), 10 * major + minor)


def _program():
    """The digest of the program that compiles."""
    digest = hashlib.sha256()
    for file in sorted(PROGRAM.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _this_machine():
    """All that a library depends on, but for what it is to do."""
    flags = ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        flags = platform.processor()
    return [torch.__version__, torch.version.git_version, torch.backends.cpu.get_cpu_capability(),
            platform.machine(), flags, os.environ.get("CXX", "")]  # fmt: skip


def _machine(gpu):
    """All that a kernel's machine code depends on, but for what it is to do."""
    if gpu is None:
        return [*_this_machine(), _program()]
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = ""
    return ["cuda", gpu.capability, triton, _program()]


def _is_whole(path):
    """Whether the file is as it was written: one cut short would end the process at a touch."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(data[:-_DIGEST]).digest() == data[-_DIGEST:]


class Kernels:
    """Loads kernels, and has those compiled that the folder lacks. For any thread.

    gpu: the Gpu that a kernel is for, which the calling thread works on; None for the CPU.
    """

    def __init__(self, folder, nice):
        self.folder = folder
        self._lock = threading.Lock()
        self._states = {}  # (packed description, gpu) -> state
        self._since = {}  # of those in the making
        self._compiler = CompileProcess(folder, nice)
        self._done = set()  # paths that the compiler is through with
        self._machines = {}

    def state(self, text, gpu=None):
        """MAKING, READY or FAILED; the first time that a kernel is asked for, it is begun."""
        with self._lock:
            self._look(gpu)
            if (text, gpu) not in self._states:
                self._states[text, gpu] = self._begin(text, gpu)
            return self._states[text, gpu]

    def stop(self):
        """Leave off what is in the making."""
        with self._lock:
            self._compiler.stop()
            for key in self._since:
                self._states.pop(key)
            self._since.clear()

    def _path(self, text, gpu):
        capability = gpu and gpu.capability
        if capability not in self._machines:
            self._machines[capability] = _machine(gpu)
        key = hashlib.sha256(json.dumps([text, *self._machines[capability]]).encode()).hexdigest()
        return self.folder / f"fused-{key[:40]}.{'so' if gpu is None else 'cubin'}"

    def _begin(self, text, gpu):
        path = self._path(text, gpu)
        if _load(text, path, gpu):
            return READY
        if len(self._states) >= MOST_KERNELS or path.with_suffix(".refused").exists():
            return FAILED
        try:
            path.unlink(missing_ok=True)  # a damaged one
            self._done.discard(str(path))
            self._compiler.request(path, json.loads(text), gpu and {"capability": gpu.capability})
        except OSError:
            return FAILED
        self._since[text, gpu] = time.monotonic()
        return MAKING

    def _look(self, gpu):
        """Take in what the compile process has done for this GPU, or the CPU."""
        self._done |= {path for path, _ in self._compiler.answers()}
        now = time.monotonic()
        for key, since in list(self._since.items()):
            if key[1] != gpu:
                continue
            path = self._path(*key)
            if str(path) in self._done:
                self._states[key] = READY if _load(key[0], path, gpu) else FAILED
            elif now - since > MOST_SECONDS:
                self._states[key] = FAILED
            else:
                continue
            del self._since[key]
        if not self._since:
            self._compiler.stop()


def _load(text, path, gpu):
    """Make a kernel known to this process's operators, if the file at `path` is a whole one."""
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
        if gpu is None:
            _worker.load_fused_kernel(number_of(text), str(path), inputs, numbers, outputs)
        else:
            _worker.load_device_kernel(number_of(text), gpu.index, _variants(path),
                                       "extents" in spec, inputs, numbers, outputs)  # fmt: skip
    except RuntimeError:
        return False
    return True


def _variants(path):
    """The variants of a kernel for a GPU, as _worker.load_device_kernel takes them."""
    head, _, rest = path.read_bytes()[:-_DIGEST].partition(b"\n")
    told = json.loads(head)
    program = rest[sum(image["bytes"] for image in told["images"]) :]
    found, at = [], 0
    for image in told["images"]:
        # CUDA looks at the code alone, which tells its own length. The program behind it is for
        # whoever meets it in memory, as a debugger or a simulated GPU.
        says = json.dumps(image | {"signature": told["signature"]})
        code = rest[at : at + image["bytes"]] + f"# {says}\n".encode() + program + b"\0"
        found.append((code, *(image[name] for name in (
            "name", "rows", "columns", "threads", "shared", "scratch"))))  # fmt: skip
        at += image["bytes"]
    return found


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
def _states_here(context, texts, on_gpus):
    """On a worker: how far its process is with kernels. on_gpus: for the GPUs of workers."""
    ((_, rows), _), = context.local_slices
    gpu = gpu_of_this_thread() if on_gpus else None
    # What works on no GPU that Triton is for, has none of the kernels.
    none = on_gpus and gpu is None
    states = [FAILED if none else _kernels.state(text, gpu) for text in texts]
    return torch.tensor([states] * rows, dtype=torch.int64)
