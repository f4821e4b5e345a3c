"""A training that can be stopped and started again. Usage: preempted_job.py FOLDER STEPS [WAIT].

Prints the losses' bits, one line a step; with WAIT it sleeps so many seconds before each step.
"""

import sys
import time
from pathlib import Path

import h5py
import numpy as np
import torch
import torch.nn.functional as F

import dtorch_mpi as dt

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
wait = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
dt.init()
rows_file = folder / "rows.h5"
if not rows_file.exists():
    with h5py.File(rows_file, "w") as file:
        file["rows"] = np.random.default_rng(0).normal(size=(96, 33)).astype(np.float32)

torch.manual_seed(0)
mesh = dt.init_device_mesh((dt.num_workers(),))
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.LayerNorm(64),
    torch.nn.Linear(64, 1),
).to("dtorch")  # fmt: skip
dt.distribute_module(model, mesh, {})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
rows = dt.data.H5Dataset(rows_file, "rows")
batches = rows.batches(
    12, seed=0, mesh=mesh, placements=[dt.Shard(0)], epochs=None, dtype=torch.float32
)
state = {"model": model, "optimizer": optimizer, "schedule": schedule, "data": batches,
         "random": dt.checkpoint.RandomState(), "step": 0}  # fmt: skip
checkpointer = dt.checkpoint.Checkpointer(folder / "checkpoints", state, every_steps=7, keep=2)
for batch in batches:
    if state["step"] == steps:
        break
    time.sleep(wait)
    noise = torch.randn(12, 1, device="dtorch")
    loss = F.mse_loss(model(batch[:, :32]) + 0.1 * noise, batch[:, 32:])
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    print("loss", state["step"], loss.item().hex(), flush=True)
    state["step"] += 1
    checkpointer.step()
print("done")
