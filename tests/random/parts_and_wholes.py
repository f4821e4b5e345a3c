"""Prints what randn on shards takes of what it takes whole, time and peak memory, on four workers.

`python parts_and_wholes.py N`: numbers to make; 5 * 10^7 by default.
"""

import sys
import time

import torch

import dtorch_mpi as dt

N = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000_000

dt.init()
mesh = dt.init_device_mesh((dt.num_workers(),))


def peaks():
    return max(figures["peak"] for figures in torch.dtorch.worker_memory())


def seconds(placements):
    best = float("inf")
    for _ in range(3):
        dt.sync()
        begin = time.perf_counter()
        made = dt.randn(N, mesh=mesh, placements=placements)
        dt.sync()
        best = min(best, time.perf_counter() - begin)
        del made
    return best


dt.randn(8, mesh=mesh, placements=[dt.Shard(0)])
idle = peaks()
part = seconds([dt.Shard(0)])
with_part = peaks() - idle
whole = seconds([dt.Replicate()])
with_whole = peaks() - idle
print(part / whole, with_part / with_whole)
