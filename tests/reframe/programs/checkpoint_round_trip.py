"""A job: saves a state in the folder named, loads it on other placements, reads it with h5py."""

import sys
from pathlib import Path

import h5py
import torch

import dtorch_mpi as dt
from dtorch_mpi import Replicate, Shard


def trained(mesh, placements):
    """A model after a step of AdamW, so that the optimizer has a state."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 7).to("dtorch")
    dt.distribute_module(model, mesh, {"*": placements})
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3, device="dtorch")).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def tensors(state):
    values = [value for value in state["model"].state_dict().values()]
    for slots in state["optimizer"].state_dict()["state"].values():
        values += [value for value in slots.values() if isinstance(value, torch.Tensor)]
    return [value.cpu() for value in values]


def main():
    folder = Path(sys.argv[1])
    dt.init()
    mesh = dt.init_device_mesh((dt.num_workers(),))
    full = torch.arange(21.0).view(7, 3)
    state = trained(mesh, [Shard(0)])
    saved = tensors(state)
    state["weight"] = dt.distribute_tensor(full, mesh, [Shard(0)])
    dt.checkpoint.save(folder, state)

    other = trained(mesh, [Replicate()])
    with torch.no_grad():
        for parameter in other["model"].parameters():
            parameter.zero_()
    other["weight"] = dt.zeros(7, 3, mesh=mesh, placements=[Shard(1)])
    dt.checkpoint.load(folder, other)
    for before, after in zip(saved, tensors(other), strict=True):
        assert torch.equal(before, after), f"saved {before}, loaded {after}"
    assert torch.equal(other["weight"].to_torch(), full), other["weight"]
    assert other["weight"].placements == (Shard(1),), other["weight"].placements

    with h5py.File(dt.checkpoint.latest(folder) / "index.h5") as index:
        assert torch.equal(torch.from_numpy(index["weight"][...]), full), index["weight"][...]
        names = []
        index.visit(names.append)
    assert "model/weight" in names, names
    print(f"the checkpoint holds what was saved, {dt.num_workers()} workers")


main()
