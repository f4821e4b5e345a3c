"""Reductions of rows in fused kernels: PyTorch's values, but for the order within a row's sum."""

import pytest
import torch
from repeated import REWRITTEN, TIMES, count, settle

import dtorch_mpi as dt

ROWS, COLUMNS = 510, 70


def tensor(device, *sizes, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*sizes, generator=random).to(device)


def rewritten(program, rtol=1.3e-6, atol=1e-6):
    """Run a program until it is rewritten, and compare it with plain PyTorch's; its stages."""
    for step in range(TIMES):
        if step == REWRITTEN:
            settle(kernels=True)
        found, expected = program("dtorch", step), program("cpu", step)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=rtol, atol=atol)
    return max(dt.debug.graph(), key=lambda stages: len(stages["program"]))


def attention_weights(x, mask, step):
    return (torch.softmax((x + mask) * (0.3 + step), -1),)


def rms_norm(x, weight, step):
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + (1e-5 + step))
    return x * scale * weight, scale


def rms_norm_that_keeps_no_scale(x, weight, step):
    return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + (1e-5 + step)) * weight,)


def distances(x, y, step):
    difference = (x - y) * (1 + step)
    return ((difference * difference).sum(-1),)


def log_sum_exp(x, y, step):
    z = x * y + step
    most = z.amax(-1, keepdim=True)
    return (most + (z - most).exp().sum(-1, keepdim=True).log(), z.amin(-1))


@pytest.mark.parametrize("chain, name", [
    (attention_weights, "aten::_softmax"), (rms_norm, "aten::mean.dim"),
    (rms_norm_that_keeps_no_scale, "aten::mean.dim"),
    (distances, "aten::sum.dim_IntList"), (log_sum_exp, "aten::amax"),
])  # fmt: skip
def test_a_chain_around_a_reduction_becomes_one_kernel(chain, name):
    def program(device, step):
        return chain(tensor(device, ROWS, COLUMNS), tensor(device, COLUMNS, seed=1), step)

    stages = rewritten(program)
    assert count(stages["dead_nodes"], name) == 1
    assert count(stages["fusion"], "dtorch::fused_rows") == 1
    assert stages["fusion"].count("aten::") == stages["fusion"].count("aten::detach")
    assert dt.debug.counters()["failed_kernels"] == 0


def test_rows_of_two_dims_and_what_others_read_in_between():
    def program(device, step):
        x, row, column = tensor(device, 60, 9, 40), tensor(device, 9, 40), tensor(device, 60, 1, 1)
        y = x * row + column
        total = y.sum((1, 2), keepdim=True)
        return y / total.abs(), y.transpose(0, 1), total

    stages = rewritten(program, rtol=1e-5)
    assert count(stages["fusion"], "dtorch::fused_rows") == 1


def test_the_backward_pass_of_a_softmax():
    def program(device, step):
        x = tensor(device, ROWS, COLUMNS).requires_grad_()
        y = torch.softmax(x * (0.5 + step), -1)
        (y * tensor(device, ROWS, COLUMNS, seed=1)).sum().backward()
        return (x.grad,)

    stages = rewritten(program)
    assert count(stages["fusion"], "aten::_softmax_backward_data") == 0
    assert count(stages["fusion"], "aten::_softmax") == 0


@pytest.mark.parametrize("why", ["another dim", "all dims", "long rows", "integers", "alone",
                                 "a column taken for a row"])  # fmt: skip
def test_what_stays_as_it_is(why):
    def program(device, step):
        x = tensor(device, 200, 200)
        if why == "another dim":
            return ((x * 2).sum(0),)
        if why == "all dims":
            return ((x * 2).sum(),)
        if why == "long rows":
            return ((tensor(device, 40, 20_000) * 2).sum(-1),)
        if why == "integers":
            return (((x * 9).long() * 2).sum(-1),)
        if why == "alone":
            return (x.sum(-1) * 2 - step + 1,)
        return (x * (x * 2).sum(-1),)

    stages = rewritten(program, atol=1e-4)
    if why == "a column taken for a row":
        assert count(stages["fusion"], "aten::mul.Tensor") == 1
    else:
        assert count(stages["fusion"], "dtorch::fused_rows") == 0


def test_dims_that_change():
    def program(device, step):
        x = tensor(device, 200, 200)
        return (torch.softmax(x * 2, step % 2), (x * 3).sum(step % 2))

    for step in range(4 * TIMES):
        if step in (8, 16):
            settle(kernels=True)
        for ours, theirs in zip(program("dtorch", step), program("cpu", step), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)


def test_it_is_given_up_where_a_row_has_a_special_value():
    def program(device, step):
        x = tensor(device, ROWS, COLUMNS)
        x[3, 5], x[4], x[5, 1] = -torch.inf, -torch.inf, torch.nan
        return attention_weights(x, tensor(device, COLUMNS), step)

    for step in range(TIMES):
        if step == REWRITTEN:
            settle(kernels=True)
        (ours,), (theirs,) = program("dtorch", step), program("cpu", step)
        torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)


@pytest.mark.parametrize("placement", [dt.Shard(0), dt.Shard(1), dt.Replicate()])
def test_parts_of_three_workers(placement):
    dt.shutdown()
    dt.init(workers=3)
    mesh = dt.init_device_mesh((3,))
    whole, row = tensor("cpu", 1000, COLUMNS), tensor("cpu", COLUMNS, seed=1)
    x = dt.distribute_tensor(whole, mesh, [placement])
    rows = dt.distribute_tensor(row, mesh, [dt.Replicate()])
    for step in range(TIMES):
        if step == REWRITTEN:
            settle(kernels=True)
        for chain in (attention_weights, rms_norm):
            for ours, theirs in zip(chain(x, rows, step), chain(whole, row, step), strict=True):
                torch.testing.assert_close(ours.to_torch(), theirs, rtol=1.3e-6, atol=1e-6)
            dt.mark_step()
    found = "".join(stages["fusion"] for stages in dt.debug.graph())
    assert ("fused_rows" in found) == (placement != dt.Shard(1))
