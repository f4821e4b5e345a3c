"""A GPU of host memory for PyTorch built without CUDA, which checks how streams share memory.

`load()` makes the device type "cuda" usable in this process: C++ sees a device guard, streams,
events, an allocator of pinned memory and kernels as it would of a real GPU. Kernels run at once, on
the CPU, over the same memory; a violation is a use of memory that a real GPU could have run at the
wrong time. With the environment variable SIMULATED_GPU_REPORT each is appended to the file
that it names, as a line of JSON.
"""

import contextlib
import fcntl
import importlib.util
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "simulated_gpu"

_extension = None


def __getattr__(name):
    """CUDAGraph, which is there once the extension is loaded; graphs.h says what it is."""
    if name == "CUDAGraph" and _extension is not None:
        return _extension.CUDAGraph
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def build():
    """Compile what has changed, and import it; another process that builds is waited for.

    It takes minutes the first time in a checkout: more than a test has.
    """
    from torch.utils import cpp_extension

    folder = BUILD / f"torch-{torch.__version__}-python-{sys.version_info[0]}.{sys.version_info[1]}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "building", "w") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        # PyTorch's own lock, which outlives a process that was killed while it built.
        (folder / "lock").unlink(missing_ok=True)
        return cpp_extension.load(
            "simulated_gpu_extension", [str(path) for path in sorted(HERE.glob("*.cpp"))],
            build_directory=str(folder),
            # NDEBUG as in PyTorch's wheels: its headers lay out some classes by it.
            extra_cflags=["-std=c++20", "-O1", "-g1", "-DNDEBUG", "-Wno-attributes"],
            # By which whoever looks for CUDA's driver finds it.
            extra_ldflags=["-Wl,-soname,libcuda.so.1"])  # fmt: skip


def load(devices=2):
    """Make `devices` simulated GPUs usable in this process, building them at need.

    Call it before the process's first backward, which fixes the number of devices. Once a process:
    a later call that asks for another number is a ValueError. RuntimeError where PyTorch is built
    for CUDA or ROCm.
    """
    global _extension
    if torch.version.cuda is not None or torch.version.hip is not None:
        raise RuntimeError(
            f"the simulated GPU takes the place of a real one: got torch {torch.__version__}, "
            "expected a build for the CPU only (pip install --index-url "
            "https://download.pytorch.org/whl/cpu torch)")  # fmt: skip
    if _extension is None:
        from . import triton_programs
        from .cuda_operators import cuda_operators

        extension = build()
        if importlib.util.find_spec("triton"):
            triton_programs.load()
        extension.start(devices, cuda_operators() | {"simulated_gpu::launch": "one device"})
        extension.set_interpreter(triton_programs)
        # Python's factories ask for it, and it would say that there is no CUDA.
        torch.cuda._lazy_init = lambda: None
        # What dtorch_mpi.device_graphs asks of it.
        extension.CUDAGraph.native_replay = lambda graph: (
            extension.replay_address(), graph.address())
        torch.cuda.current_device = extension.current_device
        torch.cuda.get_device_capability = lambda device=None: (8, 0)
        torch.cuda.CUDAGraph = extension.CUDAGraph
        torch.cuda.graph_pool_handle = extension.graph_pool_handle
        _extension = extension
        load.devices = devices
    elif load.devices != devices:
        raise ValueError(f"got {devices} devices, expected the {load.devices} that are loaded")
    return sys.modules[__name__]


def tensor(cpu_tensor, device=0):
    """A copy of a CPU tensor on a simulated GPU, made on its current stream."""
    return cpu_tensor.to(torch.device("cuda", device))


def pinned(sizes, dtype=torch.float32):
    """An uninitialized CPU tensor in pinned memory."""
    return _extension.pinned(list(sizes), dtype)


def is_pinned(cpu_tensor):
    """Whether its memory is the simulated GPU's pinned memory."""
    return _extension.is_pinned(cpu_tensor)


def new_stream(device=0):
    """A torch.Stream that nobody else has."""
    return _extension.new_stream(device)


def current_stream(device=0):
    """The calling thread's torch.Stream."""
    return _extension.current_stream(device)


@contextlib.contextmanager
def stream(stream):
    """`stream` is the calling thread's current one of its device in the block."""
    before = _extension.exchange_stream(stream)
    try:
        yield stream
    finally:
        _extension.exchange_stream(before)


def event(device=0):
    """A torch.Event."""
    return torch.Event(torch.device("cuda", device))


def record_stream(tensor, stream):
    """Once freed, its memory is handed out again only when the stream is past its use of it."""
    torch.ops.aten.record_stream(tensor, stream)


def synchronize(stream_or_device=0):
    """The host waits for a torch.Stream, or for all streams of a device."""
    if isinstance(stream_or_device, int):
        _extension.synchronize_device(stream_or_device)
    else:
        _extension.synchronize_stream(stream_or_device)


def violations():
    """One text for each use of memory without an order to an earlier use that it conflicts with."""
    return _extension.violations()


def counts():
    """What was done since the last reset, by name; see Counts of checker.h."""
    return _extension.counts()


def reset():
    """Forget violations and counts; what streams have seen, stays."""
    _extension.reset()


def set_event_delay(polls):
    """How many queries find a copy between device and pinned memory unfinished; those that are
    under way too, if they would take more. At first, 2."""
    _extension.set_event_delay(polls)


def set_host_order(by):
    """What a host thread has waited for comes before what it issues later itself ("thread"), or
    before what any thread issues later ("process"). At first, "thread"."""
    if by not in ("thread", "process"):
        raise ValueError(f"got {by!r}, expected 'thread' or 'process'")
    _extension.set_host_order(by == "process")


def live_bytes(device=0):
    """Bytes of the device's memory in use."""
    return _extension.live_bytes(device)


def graph_pool_handle():
    """A handle for `capture_begin(pool=...)` of graphs that have their memory in common."""
    return _extension.graph_pool_handle()


def replay_address():
    """The address of a C function `void replay(void *graph)` that replays the graph whose
    `address()` it gets, and takes no GIL; it throws C++ exceptions where `replay()` raises."""
    return _extension.replay_address()


def failing_group(rank, size, how):
    """A torch.distributed Backend that says it is NCCL's, and whose collectives fail on the device:
    the Work tells so (how="error", how="timeout"), or the group alone (how="group"). They move
    nothing, and what is received is zeros; with how="success" that is all."""
    return _extension.failing_group(rank, size, how)


def fail_collectives_from(elements):
    """Collectives of failing groups do not fail if they have fewer elements. At first, 0."""
    _extension.fail_collectives_from(elements)
