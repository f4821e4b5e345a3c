"""How much memory the workers use."""

import resource

import torch

from .registry import call, kernel


@kernel("dtorch.memory")
def _measure(context):
    from .. import _worker

    live = _worker.live_memory()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    ((_, rows), _), = context.local_slices
    return torch.tensor([[live[0], peak, *live[1:]]] * rows, dtype=torch.int64)


def measure(num_workers):
    """[{"bytes", "peak", "tensors", "operators"}] by worker."""
    from torch.distributed.tensor import Shard

    from ..mesh import init_device_mesh

    mesh = init_device_mesh((num_workers,))
    rows = call("dtorch.memory", [], sizes=[num_workers, 4], dtype=torch.int64, mesh=mesh,
                placements=[Shard(0)]).to_torch().tolist()
    names = ("bytes", "peak", "tensors", "operators")
    return [dict(zip(names, row, strict=True)) for row in rows]
