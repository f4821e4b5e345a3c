"""Operators that write to single tensors, as one kernel: the same bits."""

import pytest
import torch
from repeated import REWRITTEN, TIMES, count, rewritten, settle

import dtorch_mpi as dt

SIZES = [(97, 190), (150, 130), (3, 11)]


def tensors(device, scale=1.0):
    torch.manual_seed(0)
    return [torch.randn(sizes).mul_(scale).to(device) for sizes in SIZES]


OPTIMIZERS = {
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False), "add_.Tensor"),
    "adam": (lambda p: torch.optim.Adam(p, lr=0.01, foreach=False), "addcdiv_"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_goes_from_one_tensor_to_the_next(name):
    make, operator = OPTIMIZERS[name]
    kept = {}

    def program(device, step):
        if device not in kept:
            parameters = [torch.nn.Parameter(tensor) for tensor in tensors(device, 0.1)]
            kept[device] = parameters, make(parameters)
        parameters, optimizer = kept[device]
        for parameter, other in zip(parameters, tensors(device), strict=True):
            parameter.grad = (parameter.detach() - other) * 2
        optimizer.step()
        return tuple(parameter.detach().clone() for parameter in parameters)

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["dead_nodes"], f"aten::{operator}") >= 3
    # The third is too small.
    assert count(stages["fusion"], "dtorch::fused_lists") == 2
    assert count(stages["fusion"], f"aten::{operator}") <= 2
    assert dt.debug.counters()["failed_kernels"] == 0


def test_an_activation_in_place():
    def program(device, step):
        x = torch.ones(200, 300).to(device)
        y = x @ x.t()
        y.mul_(0.3 + step)
        y.relu_()
        y.sigmoid_()
        return y, y @ x

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["fusion"], "dtorch::fused_lists") == 1
    assert count(stages["fusion"], "aten::relu_") == 0


@pytest.mark.parametrize("why", ["read between", "a view"])
def test_what_stays_as_it_is(why):
    def program(device, step):
        x = torch.linspace(-1, 1, 40_000).view(200, 200).to(device)
        target = x[100:] if why == "a view" else x
        target.mul_(0.5 + step)
        between = x @ x if why == "read between" else x
        target.relu_()
        return x, between

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["fusion"], "aten::relu_") == 1


def test_tensors_that_share_memory_are_done_one_operator_after_the_other():
    """They overlap in a way that only workers see: views from before."""

    def step_of(parameter, moment, gradient, factor):
        parameter.add_(gradient, alpha=factor)
        moment.mul_(gradient)

    for first in (10_000, 60_000):  # the moment's place
        whole = {d: torch.linspace(-1, 1, 100_000).to(d) for d in ("dtorch", "cpu")}
        parts = {d: (t[:40_000], t[first : first + 40_000]) for d, t in whole.items()}
        gradients = {d: torch.full((40_000,), 0.9).to(d) for d in whole}
        for step in range(TIMES):
            if step == REWRITTEN:
                settle(kernels=True)
            for device, (parameter, moment) in parts.items():
                step_of(parameter, moment, gradients[device], 0.01 * step)
                dt.mark_step()
            assert torch.equal(whole["dtorch"].cpu(), whole["cpu"])
