"""Prints what a worker's memory grows by at its peak, the scores it was given aside, for softmax
and for cross entropy with its gradient; in sizes of the whole table of scores.
"""

import torch
import torch.nn.functional as F

import dtorch_mpi as dt

ROWS, CLASSES = 2048, 8192
WHOLE = 4 * ROWS * CLASSES

dt.init()
mesh = dt.init_device_mesh((dt.num_workers(),))


def resident():
    return [figures["peak_allocated"] for figures in torch.dtorch.worker_memory()]


def growth(function):
    """The largest growth of a worker's resident memory meanwhile, in tables."""
    torch.dtorch.reset_peak_memory_stats()
    before = resident()
    made = function()
    dt.sync()
    after = resident()
    del made
    return max(late - early for early, late in zip(before, after, strict=True)) / WHOLE


def loss(scores, target):
    F.cross_entropy(scores, target).backward()


target = dt.randint(CLASSES, [ROWS], mesh=mesh, placements=[dt.Replicate()])
for placement in dt.Shard(1), dt.Replicate():
    small = dt.randn(8, 8, mesh=mesh, placements=[placement])
    small.requires_grad_()
    F.cross_entropy(small.softmax(1), target[:8] % 8).backward()

cut = dt.randn(ROWS, CLASSES, mesh=mesh, placements=[dt.Shard(1)]).requires_grad_()
print("softmax", growth(lambda: cut.detach().softmax(1)))
print("cross_entropy", growth(lambda: loss(cut, target)))
whole = dt.randn(ROWS, CLASSES, mesh=mesh, placements=[dt.Replicate()]).requires_grad_()
print("cross_entropy_whole", growth(lambda: loss(whole, target)))
