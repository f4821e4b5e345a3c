"""Tensors of one number, as members of fused kernels."""

import pytest
import torch
from repeated import REWRITTEN, TIMES, count, rewritten, settle

import dtorch_mpi as dt

SIZES = (150, 130)


def test_a_chain_that_begins_with_a_number():
    def program(device, step):
        x = torch.full(SIZES, 0.5 + step, device=device)
        for i in range(3):
            x = torch.sigmoid(torch.relu(x * 0.9 + 0.1 * i))
        return x

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["dead_nodes"], "aten::full") == 1
    assert count(stages["fusion"], "aten::full") == 0
    assert count(stages["fusion"], "dtorch::fused") == 1


def test_each_kind_of_factory_and_one_that_is_read_elsewhere():
    def program(device, step):
        x = torch.linspace(-3, 3, 150 * 130).view(SIZES).to(device)
        ones, zeros = torch.ones(SIZES, device=device), torch.zeros_like(x)
        y = torch.where(x > zeros, x.new_full(SIZES, 2.5), torch.full_like(x, step)) - ones
        column = torch.linspace(0, 1, 150).view(150, 1).to(device)
        counts = torch.ones(SIZES, dtype=torch.int64, device=device) * 3
        return y * x.new_ones(SIZES), ones @ ones.t(), ones, zeros, ones * column, counts

    stages, _ = rewritten(program, kernels=True)
    made = [name for name in stages["fusion"].split() if name.startswith("aten::")]
    assert not [name for name in made if "full" in name or "ones" in name or "zeros" in name]
    assert dt.debug.counters()["failed_kernels"] == 0


@pytest.mark.parametrize("why", ["alone", "another dtype", "other strides"])
def test_what_stays_as_it_is(why):
    def program(device, step):
        dtype = torch.float16 if why == "another dtype" else torch.float32
        x = torch.ones(SIZES, device=device, dtype=dtype)
        if why == "another dtype":
            return x + x, x * 2, x - 1, x / 3
        if why == "other strides":
            y = torch.ones_like(x.t().contiguous().t())
            return y * 2 + 1, x @ x.t(), x.t() @ x
        return x @ x.t(), x.t() @ x, x.sum(), x.mean()

    stages, _ = rewritten(program, kernels=True)
    name = "aten::ones_like" if why == "other strides" else "aten::ones"
    assert count(stages["fusion"], name) == 1


def test_parts_of_three_workers():
    dt.shutdown()
    dt.init(workers=3)
    mesh = dt.init_device_mesh((3,))
    whole = torch.linspace(-3, 3, 20_020).view(-1, 2)
    x = dt.distribute_tensor(whole, mesh, [dt.Shard(0)])

    def program(x, step):
        return (torch.zeros_like(x) + step) * torch.full_like(x, 2.0).sigmoid() + torch.ones_like(x)

    for step in range(TIMES):
        if step == REWRITTEN:
            settle(kernels=True)
        assert torch.equal(program(x, step).to_torch(), program(whole, step))
    stages = max(dt.debug.graph(), key=lambda stages: len(stages["program"]))
    assert count(stages["fusion"], "dtorch::fused") == 1
