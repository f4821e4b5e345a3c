"""An optimizer's operators over lists of tensors as one kernel."""

import pytest
import torch
from repeated import REWRITTEN, TIMES, count, rewritten, settle

import dtorch_mpi as dt

SIZES = [(97, 190), (190,), (33, 3, 11)]


def start(device, scale=0.1):
    torch.manual_seed(0)
    return [torch.randn(sizes).mul_(scale).to(device) for sizes in SIZES]


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_adamw_gives_the_same_bits(weight_decay):
    kept = {}

    def program(device, step):
        if device not in kept:
            parameters = [torch.nn.Parameter(tensor) for tensor in start(device)]
            kept[device] = parameters, torch.optim.AdamW(
                parameters, lr=0.01, weight_decay=weight_decay, foreach=True
            )
        parameters, optimizer = kept[device]
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + step)
        for parameter, other in zip(parameters, start(device, 1.0), strict=True):
            parameter.grad = (parameter.detach() - other) * 2
        optimizer.step()
        return tuple(parameter.detach().clone() for parameter in parameters)

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["fusion"], "dtorch::fused_lists") == 1
    assert stages["fusion"].count("_foreach") == 0
    assert dt.debug.counters()["failed_kernels"] == 0


def step_of(parameters, moments, gradients, factor):
    torch._foreach_mul_(parameters, 1 - factor)
    torch._foreach_lerp_(moments, gradients, 0.1)
    torch._foreach_addcmul_(parameters, moments, gradients, factor)


def test_lists_that_share_memory_are_done_one_operator_after_the_other():
    """The program's tensors overlap in a way that only workers see: views from before."""

    def tensors(device, shared):
        whole = torch.linspace(-1, 1, 60_000).to(device)
        parts = [whole[:20_000], whole[20_000:40_000]]
        moments = [whole[25_000:45_000] if shared else whole[40_000:].clone(), whole[40_000:]]
        gradients = [torch.ones(20_000, device=device) * k for k in (0.5, 2)]
        return whole, parts, moments, gradients

    for shared in (False, True):
        devices = {device: tensors(device, shared) for device in ("dtorch", "cpu")}
        for step in range(TIMES):
            if step == REWRITTEN:
                settle(kernels=True)
            for _, parts, moments, gradients in devices.values():
                step_of(parts, moments, gradients, 0.01 * step)
                dt.mark_step()
            ours, theirs = (devices[device][0] for device in ("dtorch", "cpu"))
            torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0)


def test_a_list_made_in_between_that_is_read_later_is_kept():
    def program(device, step):
        x = start(device)
        roots = torch._foreach_sqrt(torch._foreach_abs(x))
        torch._foreach_mul_(x, 0.5 + step)
        torch._foreach_add_(x, roots)
        return (*x, *roots)

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["fusion"], "dtorch::fused_lists") == 0
