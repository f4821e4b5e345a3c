"""Profiles a loop that comes again; run as `profiled_program.py TRACE STEPS`."""

import json
import sys

import torch

import dtorch_mpi as dt

dt.init()
trace, steps = sys.argv[1], int(sys.argv[2])
mesh = dt.init_device_mesh((dt.num_workers(),))
weight = dt.distribute_tensor(torch.ones(8, 8) / 8, mesh, [dt.Shard(0)])
rows = dt.distribute_tensor(torch.ones(8, 8), mesh, [dt.Shard(0)])
values = []
with dt.profile(trace) as profile:
    before = dt.debug.counters()
    for step in range(steps):
        x = rows @ weight  # the product's line
        for _ in range(4):
            x = torch.sigmoid(x) + 1  # the loop's line
        if step == steps - 2:
            x = x * 2  # the detour's line
        values.append(x.sum().item())
    after = dt.debug.counters()
print(json.dumps({
    "values": values, "lost": profile.lost, "operators": profile.operators,
    "errors": profile.clock_errors,
    "growth": {name: after[name] - before[name] for name in ("replays", "departures")},
}))  # fmt: skip
