import pytest
import torch
from repeated import REWRITTEN, TIMES, count, rewritten, settle

import dtorch_mpi as dt


def test_equal_nodes_are_worked_out_once():
    def program(device, step):
        x = torch.full((4, 4), 0.5 + step, device=device)
        for _ in range(3):
            x = x.sin().sum(0) + x.sin().sum(1)
            x = x * x.view(4, 1)
        return x

    stages, _ = rewritten(program)
    assert count(stages["program"], "aten::sin") == 6
    assert count(stages["common_subexpressions"], "aten::sin") == 3


def test_nodes_with_a_write_between_are_not_equal():
    def program(device, step):
        x = torch.full((4, 4), 0.5 + step, device=device)
        y = torch.zeros(4, 4, device=device)
        for _ in range(3):
            y = y + x.sin()
            x.view(16)[1:3].mul_(0.5)
            y = y + x.sin()
        return y

    stages, _ = rewritten(program)
    # The last of one time round and the first of the next see the same.
    assert count(stages["common_subexpressions"], "aten::sin") == 4


def test_numbers_that_change_apart_are_not_equal():
    def program(device, step):
        x = torch.full((4, 4), 0.5, device=device)
        for i in range(4):
            x = torch.mul(x, 2.0) + torch.mul(x, 2.0 + (step > 3))
            x = x[i % 2:i % 2 + 2].repeat(2, 1) + x[:2].repeat(2, 1)
        return x

    stages, _ = rewritten(program)
    assert count(stages["common_subexpressions"], "aten::mul.Tensor") == 8


def test_what_is_written_or_kept_is_not_shared():
    def program(device, step):
        x = torch.full((4,), 0.5 + step, device=device)
        a, b = x.exp(), x.exp()
        for _ in range(4):
            a.add_(b)
        return a, b

    stages, _ = rewritten(program)
    assert count(stages["common_subexpressions"], "aten::exp") == 2


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_equal_redistributions_are_done_once(workers):
    dt.shutdown()
    dt.init(workers=workers)
    mesh = dt.init_device_mesh((workers,))
    whole = torch.arange(35.0).reshape(7, 5)
    x = dt.distribute_tensor(whole, mesh, [dt.Shard(0)])
    for step in range(TIMES):
        if step == REWRITTEN:
            settle()
        y = x + step
        total = torch.zeros(5, 7, device="dtorch")
        for _ in range(3):
            total = total + y.redistribute(mesh, [dt.Replicate()]).t() * 2
            total = total + y.redistribute(mesh, [dt.Replicate()]).t().sin()
        expected = torch.zeros(5, 7)
        for _ in range(3):
            expected = expected + (whole + step).t() * 2
            expected = expected + (whole + step).t().sin()
        torch.testing.assert_close(total.cpu(), expected)
    stages = max(dt.debug.graph(), key=lambda stages: len(stages["program"]))
    assert stages["program"].count("redistribute") == 6
    assert stages["common_subexpressions"].count("redistribute") == 1
