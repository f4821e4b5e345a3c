"""Prints what randn on shards takes of what it takes whole, on four workers: processor time and
peak memory of the worker that takes most.

`python parts_and_wholes.py N`: numbers to make; 5 * 10^7 by default.
"""

import resource
import sys

import torch

import dtorch_mpi as dt
from dtorch_mpi.kernels import call, kernel

N = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000_000


@kernel("test.processor_seconds")
def processor_seconds(context):
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return torch.tensor([usage.ru_utime + usage.ru_stime], dtype=torch.float64)


dt.init()
mesh = dt.init_device_mesh((dt.num_workers(),))


def spent():
    return call("test.processor_seconds", [], sizes=[dt.num_workers()], dtype=torch.float64,
                mesh=mesh, placements=[dt.Shard(0)]).to_torch()


def peaks():
    return max(figures["peak_allocated"] for figures in torch.dtorch.worker_memory())


def seconds(placements):
    best = float("inf")
    for _ in range(3):
        before = spent()
        made = dt.randn(N, mesh=mesh, placements=placements)
        best = min(best, (spent() - before).max().item())
        del made
    return best


dt.randn(8, mesh=mesh, placements=[dt.Shard(0)])
idle = peaks()
part = seconds([dt.Shard(0)])
with_part = peaks() - idle
whole = seconds([dt.Replicate()])
with_whole = peaks() - idle
print(part / whole, with_part / with_whole)
