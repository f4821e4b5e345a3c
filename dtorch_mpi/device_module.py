"""torch.dtorch: what PyTorch expects of a device's module."""

import contextlib

import torch

_initialized = True  # else torch.utils.checkpoint would not restore the generator's state


def is_initialized():
    return True


def is_available():
    return True


def init():
    from .runtime import runtime

    runtime()


def _is_in_bad_fork():
    from .runtime import in_forked_child

    return in_forked_child()


def device_count():
    """One: `dtorch:0` stands for all workers."""
    return 1


def current_device():
    return 0


def set_device(device):
    """Nothing to choose; raises ValueError for another device than dtorch:0."""
    named = torch.device(f"dtorch:{device}" if isinstance(device, int) else device)
    if named.type != "dtorch" or named.index not in (None, 0):
        raise ValueError(f"dtorch has one device, dtorch:0; got {device!r}")


class device:  # noqa: N801 -- as torch.cuda.device
    """A context in which the given device, always dtorch:0, is the current one."""

    def __init__(self, device=None):
        if device is not None and device != -1:
            set_device(device)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


def current_stream(device=None):
    """The one stream there is: the program's order."""
    return torch.accelerator.current_stream()


def default_stream(device=None):
    return current_stream(device)


Stream = torch.Stream
Event = torch.Event


def stream(stream):
    """A context in which operators go to the given stream, always the same."""
    return contextlib.nullcontext(stream)


def get_device_name(device=None):
    from .runtime import runtime

    return f"dtorch ({runtime().num_workers} workers)"


def synchronize(device=None):
    """Wait until the workers have executed everything issued so far; raises WorkerError."""
    from .runtime import sync

    sync()


def _default_generator():
    from . import _core

    return _core.default_generator()


def manual_seed(seed):
    """Seed the device's generator. The same seed gives the same numbers on any mesh."""
    _default_generator().manual_seed(int(seed))


def manual_seed_all(seed):
    manual_seed(seed)


def seed():
    return _default_generator().seed()


def initial_seed():
    return _default_generator().initial_seed()


def get_rng_state(device="dtorch"):
    """The generator's state: 16 bytes, seed and offset."""
    return _default_generator().get_state()


def set_rng_state(new_state, device="dtorch"):
    _default_generator().set_state(new_state)


def get_rng_state_all():
    return [get_rng_state()]


def set_rng_state_all(new_states):
    set_rng_state(new_states[0])


# PyTorch's name -> that of worker_memory(); in the order of DeviceMemory, src/device/memory.h.
_STATS = {
    "allocated_bytes.all.current": "allocated", "allocated_bytes.all.peak": "peak_allocated",
    "active_bytes.all.current": "active", "active_bytes.all.peak": "peak_active",
    "reserved_bytes.all.current": "reserved", "reserved_bytes.all.peak": "peak_reserved",
    "num_alloc_retries": "retries", "num_ooms": "failures",
}  # fmt: skip


def memory_stats(device=None):
    """Figures of the workers' memory by the names of `torch.cuda.memory_stats`.

    Each is that of the worker where it is largest. On GPUs they are those of PyTorch's allocator
    for the worker's GPU, in the worker's process. On CPUs, where nothing is counted, they are the
    bytes of live tensors, and for peaks the resident memory of the process.
    """
    workers = worker_memory()
    return {name: max(figures[own] for figures in workers) for name, own in _STATS.items()}


def memory_allocated(device=None):
    """Bytes that tensors take on the worker that holds most."""
    return memory_stats()["allocated_bytes.all.current"]


def max_memory_allocated(device=None):
    """The most that tensors took on a worker; on CPUs, the peak of a process's resident memory."""
    return memory_stats()["allocated_bytes.all.peak"]


def memory_reserved(device=None):
    """Bytes that PyTorch's allocator has of the GPU of the worker where these are most."""
    return memory_stats()["reserved_bytes.all.current"]


def max_memory_reserved(device=None):
    """The most that PyTorch's allocator had of a worker's GPU."""
    return memory_stats()["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device=None):
    """Have the peaks begin anew with what the workers hold now."""
    from .kernels import memory

    memory.reset_peak()


def memory_summary(device=None, abbreviated=False):
    """A table of worker_memory() as text, a line a worker.

    held: by live tensors; the rest as in memory_stats(), with peaks behind a slash. `abbreviated`
    is for the sake of `torch.cuda.memory_summary`.
    """
    pools = ["allocated", "active", "reserved"]
    rows = [["worker", "tensors", "held", *pools, "retries", "failures"]]
    for worker, found in enumerate(worker_memory()):
        both = [f"{_in_words(found[name])} / {_in_words(found[f'peak_{name}'])}" for name in pools]
        rows.append([str(worker), str(found["tensors"]), _in_words(found["bytes"]), *both,
                     str(found["retries"]), str(found["failures"])])  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
                     for row in rows)  # fmt: skip


def _in_words(number):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} TiB"


def worker_memory():
    """A dict for each worker. bytes, tensors: of live tensors. operators: executed so far.
    allocated, active, reserved, peak_allocated, peak_active, peak_reserved: bytes, and retries,
    failures: as in memory_stats().
    """
    from .runtime import runtime

    return runtime().worker_memory()


def empty_cache():
    """Have the workers give back to their GPUs what PyTorch's allocators keep idle there."""
    from .kernels import memory
    from .runtime import current

    if current() is not None:
        memory.empty_cache()


def get_amp_supported_dtype():
    return [torch.bfloat16, torch.float16]


def is_bf16_supported():
    return True
