"""Kernels of bfloat16: each operator's result is rounded, as PyTorch's operators do."""

import pytest
import torch
from repeated import count, rewritten

import dtorch_mpi as dt


def tensor(device, *sizes):
    values = torch.linspace(-3, 3, torch.Size(sizes).numel(), dtype=torch.bfloat16)
    return values.view(sizes).to(device)


def test_a_chain():
    def program(device, step):
        x, row = tensor(device, 301, 70), tensor(device, 70)
        y = torch.relu(x * (0.3 + step) + row).sigmoid() - 0.1
        return torch.where(x > row, y, -x).exp() / 3, y

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["fusion"], "dtorch::fused") == 1
    assert count(stages["fusion"], "aten::exp") == count(stages["fusion"], "aten::relu") == 0
    assert dt.debug.counters()["failed_kernels"] == 0


def test_a_tensor_of_one_number():
    def program(device, step):
        row = tensor(device, 70)
        x = torch.full((301, 70), 0.3, dtype=torch.bfloat16, device=device)
        return (x * row - 0.1).relu() * (1 + step)

    stages, _ = rewritten(program, kernels=True)
    assert dt.debug.counters()["failed_kernels"] == 0
    assert count(stages["fusion"], "aten::full") == 0


@pytest.mark.parametrize("why", ["mixed", "float16"])
def test_what_stays_as_it_is(why):
    def program(device, step):
        x = tensor(device, 301, 70)
        if why == "float16":
            x = x.half()
            return x.relu().sigmoid(), x * 2
        y = x * torch.ones(301, 70).to(device)
        return y.to(torch.bfloat16) * 2, x.float() + 1

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["fusion"], "dtorch::fused") == 0
