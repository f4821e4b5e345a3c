"""Loads on this job's workers and prints the most bytes that one has read, and its part."""

import sys

import torch

import dtorch_mpi as dt
from dtorch_mpi.kernels import kernel
from dtorch_mpi.kernels.timeline import on_all_workers


@kernel("dtorch.tests.bytes_read")
def _bytes_read(context):
    with open("/proc/self/io") as file:
        (line,) = [line for line in file if line.startswith("rchar:")]
    return torch.tensor([[int(line.split()[1])]])


def bytes_read():
    return on_all_workers("tests.bytes_read", [], dt.num_workers(), 1).to_torch()


folder, dim = sys.argv[1:]
dt.init()
mesh = dt.init_device_mesh((dt.num_workers(),))
placement = [dt.Shard(int(dim))]
state = {"x": dt.zeros(1200, 3000, mesh=mesh, placements=placement)}
dt.checkpoint.load(folder, {"x": dt.zeros(1200, 3000, mesh=mesh, placements=placement)})
bytes_read()
before = bytes_read()
dt.checkpoint.load(folder, state, verify=False)
dt.sync()
read = (bytes_read() - before).max().item()
assert state["x"].eq(torch.arange(3000.0, device="dtorch")).all().item()
print(read, 4 * 1200 * 3000 // dt.num_workers())
