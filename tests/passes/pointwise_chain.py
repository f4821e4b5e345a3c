"""A job that runs a chain of pointwise operators until it is fused, or can't be; prints counters.

The workers' parts are uneven. Its one kernel is that of test_fusion.py.
"""

import json

import torch

import dtorch_mpi as dt

ROWS, COLUMNS = 10_007, 3


def chain(x, step):
    for i in range(3):
        x = torch.sigmoid(torch.relu(x * (0.9 + step) + 0.1 * i))
    return x


def main():
    dt.init()
    mesh = dt.init_device_mesh((dt.num_workers(),))
    whole = torch.linspace(-3, 3, ROWS * COLUMNS).view(ROWS, COLUMNS)
    x = dt.distribute_tensor(whole, mesh, [dt.Shard(0)])
    for step in range(9):
        if step == 4:
            dt.sync()
            dt.runtime.current().main.planner.wait(100, kernels=True)
        parts = dt.local_shards(chain(x, step))
        for part, expected in zip(parts, dt.local_shards(x), strict=True):
            assert torch.equal(part, chain(expected, step)), step
    counters = dt.debug.counters()
    counters["in_use"] = "dtorch::fused" in dt.debug.graph()[0]["fusion"]
    print(json.dumps(counters))


if __name__ == "__main__":
    main()
