"""A training of which a worker is killed at step 7, unless it begins at a checkpoint.

Arguments: a folder for checkpoints, and a file to which it adds a line "step loss" for each step.
"""

import contextlib
import os
import signal
import sys
import time

import torch
import torch.nn.functional as F
from torch.distributed.tensor import Shard

import dtorch_mpi as dt

STEPS, DEATH, EVERY = 12, 7, 5


def kill_last_rank():
    """As kill -9 from outside: of the processes that this one's launcher has started."""
    siblings = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) == os.getppid():
                siblings.append(int(pid))
    os.kill(max(siblings), signal.SIGKILL)


def parts():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    return model, lambda: torch.optim.AdamW(model.parameters(), lr=0.05)


def batch_of(step):
    generator = torch.Generator().manual_seed(step)
    rows = torch.randn(12, 6, generator=generator)
    return rows, rows[:, :3].sin()


def main(checkpoints, losses):
    dt.init()
    mesh = dt.init_device_mesh((dt.num_workers(),))
    model, optimizer = parts()
    model = model.to("dtorch")
    dt.distribute_module(model, mesh, {})
    optimizer = optimizer()
    state = {"model": model, "optimizer": optimizer, "step": 0}
    first = 0
    if dt.checkpoint.latest(checkpoints):
        dt.checkpoint.load(checkpoints, state)
        first = state["step"]
    for step in range(first, STEPS):
        rows, targets = (dt.distribute_tensor(t, mesh, [Shard(0)]) for t in batch_of(step))
        loss = F.mse_loss(model(rows), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with open(losses, "a") as file:
            file.write(f"{step} {loss.item()} {dt.num_workers()}\n")
        if (step + 1) % EVERY == 0:
            state["step"] = step + 1
            dt.checkpoint.save(checkpoints, state)
        if step == DEATH and first == 0:
            kill_last_rank()
            time.sleep(30)  # the launcher ends this rank too


if __name__ == "__main__":
    main(*sys.argv[1:])
