"""How much memory the workers use, and giving back what they keep idle."""

import torch

from .registry import call, kernel
from .timeline import on_all_workers, own_row

_GRAPH = ["bytes", "tensors", "operators"]
_DEVICE = ["allocated", "peak_allocated", "active", "peak_active", "reserved", "peak_reserved",
           "retries", "failures"]  # fmt: skip
_UNKNOWN = -1


@kernel("dtorch.memory")
def _measure(context):
    from .. import _worker

    return own_row(context, _worker.live_memory())


@kernel("dtorch.device_memory")
def _measure_device(context):
    from .. import _worker

    # The CPU's allocator counts nothing.
    found = _worker.device_memory() or {"peak_allocated": _peak_resident()}
    return own_row(context, [found.get(name, _UNKNOWN) for name in _DEVICE])


def _peak_resident():
    """The largest resident memory of this process since its start or the last reset."""
    with open("/proc/self/status") as file:
        (line,) = [line for line in file if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@kernel("dtorch.reset_peak")
def _reset_peak(context):
    from .. import _worker

    if not _worker.reset_peak_memory():
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak of resident memory, see proc(5)
    return torch.zeros(context.sizes[0], dtype=torch.uint8)


def reset_peak():
    """Have the workers' peaks begin anew, once everything issued so far is executed."""
    call("dtorch.reset_peak", [], sizes=[], dtype=torch.uint8)


@kernel("dtorch.empty_cache")
def _empty_cache(context):
    from .. import _worker

    _worker.empty_cache()
    return torch.zeros(context.sizes[0], dtype=torch.uint8)


def empty_cache():
    """Have the workers give back to their GPUs what they keep idle, in the program's order."""
    call("dtorch.empty_cache", [], sizes=[], dtype=torch.uint8)


def measure(num_workers, graphs):
    """What `device_module.worker_memory` returns; graphs: all, by their engines."""
    from ..engine import issuing_to

    live = []
    for graph in graphs:
        with issuing_to(graph):
            live.append(on_all_workers("memory", [], num_workers, len(_GRAPH)))
    live = torch.stack([rows.to_torch() for rows in live]).sum(0)
    # Once all graphs have come so far: the allocator counts them together.
    device = on_all_workers("device_memory", [], num_workers, len(_DEVICE)).to_torch()
    return [
        dict(zip(_GRAPH, own, strict=True)) | _device_figures(own[0], figures)
        for own, figures in zip(live.tolist(), device.tolist(), strict=True)
    ]


def _device_figures(live_bytes, figures):
    found = dict(zip(_DEVICE, figures, strict=True))
    if found["allocated"] != _UNKNOWN:
        return found
    peak = found["peak_allocated"]  # of a CPU's process, which keeps nothing idle
    return {"allocated": live_bytes, "peak_allocated": peak, "active": live_bytes,
            "peak_active": peak, "reserved": live_bytes, "peak_reserved": peak,
            "retries": 0, "failures": 0}  # fmt: skip
