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


def memory_allocated(device=None):
    """Bytes that live tensors take on the worker that holds most."""
    return max(figures["bytes"] for figures in worker_memory())


def max_memory_allocated(device=None):
    """The peak resident memory of the worker process that has the largest, in bytes."""
    return max(figures["peak"] for figures in worker_memory())


def reset_peak_memory_stats(device=None):
    """Have max_memory_allocated() begin anew with what the workers hold now."""
    from .kernels import memory

    memory.reset_peak()


def worker_memory():
    """[{"bytes": of live tensors, "peak": of the process, "tensors": number}] by worker."""
    from .runtime import runtime

    return runtime().worker_memory()


def empty_cache():
    """Nothing is cached on CPU workers."""


def get_amp_supported_dtype():
    return [torch.bfloat16, torch.float16]


def is_bf16_supported():
    return True
