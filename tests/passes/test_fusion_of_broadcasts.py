"""Operands that are broadcast, in kernels of pointwise operators."""

import pytest
import torch
from repeated import REWRITTEN, TIMES, count, rewritten, settle

import dtorch_mpi as dt

SIZES = (6, 67, 50)


def tensor(device, *sizes):
    return torch.linspace(-3, 3, torch.Size(sizes).numel()).view(sizes).to(device)


@pytest.mark.parametrize("operand", [(50,), (67, 1), (6, 1, 1), (6, 1, 50), (1, 67, 1), (1, 1, 1)])
def test_an_operand_of_fewer_elements(operand):
    def program(device, step):
        x = tensor(device, *SIZES)
        return torch.relu(x * tensor(device, *operand) + (1 + step)).sigmoid()

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["fusion"], "dtorch::fused") == 1
    assert count(stages["fusion"], "aten::mul.Tensor") == 0
    assert dt.debug.counters()["failed_kernels"] == 0


def test_a_row_a_column_a_number_and_a_view_that_repeats_in_one_kernel():
    def program(device, step):
        x = tensor(device, *SIZES)
        row, column = tensor(device, 50), tensor(device, 6, 67, 1)
        scale = tensor(device, 7)[step % 7]
        y = (x - column) * row.expand(67, 50) + scale
        return torch.where(column > row, y, x).tanh(), y

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["fusion"], "dtorch::fused") == 1
    assert count(stages["fusion"], "aten::tanh") == count(stages["fusion"], "aten::gt.Tensor") == 0
    assert dt.debug.counters()["failed_kernels"] == 0


def test_the_backward_pass_of_a_mean():
    """Its gradient comes as a view that repeats one element."""

    def program(device, step):
        x = tensor(device, *SIZES).requires_grad_()
        (x * (0.5 + step)).sigmoid().mean().backward()
        return x.grad

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["fusion"], "aten::sigmoid_backward") == 0


def test_inputs_of_which_none_is_whole():
    def program(device, step):
        return (tensor(device, 200, 1) * tensor(device, 300) + step).relu()

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["fusion"], "dtorch::fused") == 1


@pytest.mark.parametrize("why", ["another layout", "another zero"])
def test_what_stays_as_it_is(why):
    def program(device, step):
        x = tensor(device, 200, 300)
        if why == "another layout":
            return (x * tensor(device, 300, 200).t()).relu()
        return torch.maximum(x, tensor(device, 300)).relu()

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["fusion"], "aten::relu") == 1
    assert dt.debug.counters()["failed_kernels"] == 0


@pytest.mark.parametrize("placements", [["S0", "R", "S0"], ["S1", "S0", "R"]])
def test_parts_of_three_workers(placements):
    """Uneven ones; a row or a column goes with the part that it belongs to."""
    dt.shutdown()
    dt.init(workers=3)
    mesh = dt.init_device_mesh((3,))
    of = {"S0": dt.Shard(0), "S1": dt.Shard(1), "R": dt.Replicate()}
    whole = [tensor("cpu", *sizes) for sizes in ((1000, 50), (50,), (1000, 1))]
    x, row, column = (dt.distribute_tensor(value, mesh, [of[placement]])
                      for value, placement in zip(whole, placements, strict=True))  # fmt: skip

    def program(x, row, column, step):
        return ((x + row) * column - step).relu()

    for step in range(TIMES):
        if step == REWRITTEN:
            settle(kernels=True)
        found = program(x, row, column, step).to_torch()
        assert torch.equal(found, program(*whole, step))
    stages = max(dt.debug.graph(), key=lambda stages: len(stages["program"]))
    assert count(stages["fusion"], "dtorch::fused") == 1
