"""The device made known to PyTorch, with the functions that the compiled parts call."""

import torch

from . import _core, endings, loading, printing, runtime, tensor
from .call_sites import LIBRARY_FOLDERS
from .device_module import empty_cache, memory_stats, reset_peak_memory_stats
from .kernels import interception
from .sizes.families import sizes


def register():
    """Make the device known to PyTorch; runs once, at import."""
    for folder in LIBRARY_FOLDERS:
        _core.add_library_folder(folder)
    _core.register(
        read=tensor.read, describe=_describe, shard=_shard, elements=_by_elements, sizes=sizes,
        start=_start, drain=_check, synchronize=runtime.sync, measure=_measure,
        reset_peak=reset_peak_memory_stats, empty_cache=empty_cache, arrived=loading.arrived,
    )
    # As workers on CPUs have it, until there are others. PyTorch's for new devices is float16.
    torch.set_autocast_dtype("dtorch", torch.get_autocast_dtype("cpu"))
    tensor.add_methods()
    printing.install()
    loading.install()
    endings.install()
    interception.install()


def _shard(*call):
    from .sharding.hook import shard  # here, and not above, for mesh.py's reason

    return shard(*call)


def _by_elements(name, overload):
    from .sharding.lists import by_elements

    return by_elements(name, overload)


def _start(for_old_tensors):
    if for_old_tensors and runtime.can_start():
        raise RuntimeError(
            "this tensor belongs to dtorch workers that were shut down: make it again, or keep its "
            "value with .cpu() before dtorch_mpi.shutdown()"
        )
    runtime.init()


def _check():
    if (running := runtime.current()) is not None:
        running.check()


def _measure():
    return list(memory_stats().values())


def _describe(slots):
    running = runtime.runtime()
    found = []
    for slot in slots:
        replies, promise = running.expect_all(nbytes=1024)
        _core.request_description(slot, promise)
        found.append(replies)
    running.flush()
    return [_description(running, replies) for replies in found]


def _description(running, replies):
    while not replies.wait(100_000):
        running.check()
    parts = replies.parts()
    failures = [failure for _, failure in parts if failure is not None]
    failure = running.not_yet_raised(failures, certain=True)
    if failure is not None:
        raise running.error(failure)
    words = next(value for value, _ in parts if value is not None).tolist()
    if not words:
        return None
    dtype, ndim, offset = words[:3]
    return dtype, words[3 : 3 + ndim], words[3 + ndim :], offset
