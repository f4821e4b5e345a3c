"""A job: trains a small GPT in several ways and compares every loss with plain PyTorch's.

Arguments: ways to place the model (data, sharded, tensor); --steps N of training.
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from gpt import GPT, GPTConfig  # noqa: E402

import dtorch_mpi as dt  # noqa: E402
from dtorch_mpi import Replicate, Shard  # noqa: E402

BATCH, BLOCK = 8, 16
TENSOR_PLAN = {
    "*.attention.qkv.*": [Replicate(), Shard(0)], "*.attention.out.weight": [Replicate(), Shard(1)],
    "*.up.*": [Replicate(), Shard(0)], "*.down.weight": [Replicate(), Shard(1)],
}  # fmt: skip


def losses(num_steps, dtype, device, place, put):
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=64, block=BLOCK, layers=2, heads=4, width=32)).to(dtype)
    model = model.to(device)
    place(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(num_steps):
        tokens = torch.randint(0, 64, (BATCH, BLOCK + 1), generator=generator)
        inputs, targets = put(tokens[:, :-1].contiguous()), put(tokens[:, 1:].contiguous())
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    return torch.stack([loss.cpu() for loss in found])


def ways(workers):
    line = dt.init_device_mesh((workers,), mesh_dim_names=("dp",))
    yield "data", line, {}, [Shard(0)]
    yield "sharded", line, {"*": [Shard(0)]}, [Shard(0)]
    if workers == 4:
        grid = dt.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
        yield "tensor", grid, TENSOR_PLAN, [Shard(0), Replicate()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ways", nargs="+", choices=["data", "sharded", "tensor"])
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    dt.init()
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-10)):
        expected = losses(arguments.steps, dtype, "cpu", lambda model: None, lambda tensor: tensor)
        assert expected[-1] < expected[0] + 1, "the oracle itself does not train"
        for name, mesh, plan, batch in ways(dt.num_workers()):
            if name not in arguments.ways:
                continue
            found = losses(
                arguments.steps, dtype, "dtorch",
                lambda model, m=mesh, p=plan: dt.distribute_module(model, m, p),
                lambda tensor, m=mesh, b=batch: dt.distribute_tensor(tensor, m, b),
            )  # fmt: skip
            worst = (found - expected).abs().max().item()
            print(f"{name} {dtype} on {dt.num_workers()} workers: {worst:.2g}", flush=True)
            assert worst <= tolerance, f"{name} {dtype}: losses differ by {worst}"
    print(f"losses are those of plain PyTorch, {dt.num_workers()} workers")


main()
