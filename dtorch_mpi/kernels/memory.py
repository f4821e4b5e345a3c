"""How much memory the workers use."""

import torch

from .registry import call, kernel


@kernel("dtorch.memory")
def _measure(context):
    from .. import _worker

    live = _worker.live_memory()
    ((_, rows), _), = context.local_slices
    return torch.tensor([[live[0], _peak(), *live[1:]]] * rows, dtype=torch.int64)


def _peak():
    """The largest resident memory of this process since its start or the last reset."""
    with open("/proc/self/status") as file:
        (line,) = [line for line in file if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@kernel("dtorch.reset_peak")
def _reset_peak(context):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak of resident memory, see proc(5)
    return torch.zeros(context.sizes[0], dtype=torch.uint8)


def reset_peak():
    """Have the workers' peaks begin anew, once everything issued so far is executed."""
    call("dtorch.reset_peak", [], sizes=[], dtype=torch.uint8)


def measure(num_workers, graphs):
    """[{"bytes", "peak", "tensors", "operators"}] by worker, of all graphs of these numbers."""
    from torch.distributed.tensor import Shard

    from ..engine import issuing_to
    from ..mesh import init_device_mesh

    mesh = init_device_mesh((num_workers,))
    found = []
    for graph in graphs:
        with issuing_to(graph):
            found.append(call("dtorch.memory", [], sizes=[num_workers, 4], dtype=torch.int64,
                              mesh=mesh, placements=[Shard(0)]))  # fmt: skip
    rows = torch.stack([rows.to_torch() for rows in found])  # [graphs, workers, 4]
    totals, peaks = rows.sum(0).tolist(), rows.amax(0).tolist()
    return [
        {"bytes": total[0], "peak": peak[1], "tensors": total[2], "operators": total[3]}
        for total, peak in zip(totals, peaks, strict=True)
    ]
