"""Parts of plans as graphs of the device (DTORCH_CUDA_GRAPHS): the same values, whatever changes
from run to run, and in a steady loop each run is one of graphs.

Which parts are graphs: test_device_graph_parts.py.
"""

import os
import sys
from pathlib import Path

import pytest
import torch
from steady_loops import (
    MOST,
    STEADY,
    TIMES,
    between,
    check,
    counts,
    fresh_graphs,  # noqa: F401
    on_both,
    release,
    settle,
)  # fmt: skip
from torch import nn

import dtorch_mpi as dt
from dtorch_mpi.device_graphs import Captures

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from fuzz import hunt  # noqa: E402
from fuzz_programs import text  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ["DTORCH_DEVICE"] != "gpu", reason="CPUs have no graphs")


def test_a_chain():
    x = on_both(64, 64)
    check(lambda device, i: ((x[device] @ x[device]).relu() + x[device]).tanh().sum(0), parts=1)


def test_an_input_that_is_somewhere_else_each_time():
    kept = []

    def step(device, i):
        x = torch.full((32, 32), float(i)).to(device)
        kept.append(x)  # so that its memory is not taken again
        return ((x * 2 + 1).sqrt() - x).exp().sum(1)

    check(step, parts=1)


def test_an_input_that_is_somewhere_else_at_last():
    """Once it has moved it is copied: that is one capture more, and no more for its later moves."""
    x = on_both(32, 32)

    def step(device, i):
        if i >= 8:
            x[device] = x[device].clone()
            between(device)
        return ((x[device] * 2 + 1).abs().sqrt() - x[device]).exp().sum(1)

    check(step, parts=1)
    assert 2 <= counts()[1] <= 3


def test_an_input_that_is_written_where_it_is():
    kept = {"cpu": [], "dtorch": []}

    def step(device, i):
        x = torch.full((32, 32), float(i)).to(device)
        kept[device].append(x)
        row, wide = x[3], x[:1].expand(32, 32)
        y = ((wide * 2).relu() + 1).sqrt()
        x.mul_(2).add_(y)
        return torch.cat([x.tanh(), row[None], wide, y])

    check(step, parts=1)
    for found, expected in zip(kept["dtorch"], kept["cpu"], strict=True):
        torch.testing.assert_close(found.cpu(), expected)


def test_inputs_of_one_memory_that_moves():
    """A copy of each would not show what is written to the other: the records run by themselves."""
    kept = []

    def step(device, i):
        x = torch.full((32, 32), float(i)).to(device)
        above, below = x[:20], x[12:]
        kept.append(x)
        between(device)
        above.mul_(2)
        return ((below * 2).relu() + 1).sqrt() + below.tanh()

    check(step, parts=0)


def test_inputs_that_share_memory_once():
    """Most of the time y is a tensor of its own, and is copied; once it is all of x."""
    x, kept = on_both(32, 32), []

    def step(device, i):
        y = x[device][:] if i == 9 else torch.full((32, 32), float(i)).to(device)
        kept.append(y)
        between(device)
        x[device].add_(1)
        return (y * 2).relu().sqrt().tanh() + y

    check(step, parts=1)


def test_expanded_inputs_that_move():
    kept = []

    def step(device, i):
        x = torch.full((1, 32), float(i)).to(device)
        kept.append(x)
        wide = x.expand(32, 32)
        between(device)
        return ((wide * 2 + 1).sqrt() - wide).exp().sum(1)

    check(step, parts=1)


def test_elements_named_by_their_place_in_memory():
    kept = []

    def step(device, i):
        whole = (torch.arange(20.0) * (i + 1)).to(device)
        kept.append(whole)  # so that its memory is not taken again
        y = whole[5:10]
        between(device)
        z = y.as_strided((5,), (1,), 0)
        return ((z * 2 + 1).sin().cos() + y).relu()

    check(step, parts=None)


def test_results_that_are_kept():
    x, kept = on_both(64, 64), {"cpu": [], "dtorch": []}

    def step(device, i):
        x[device].mul_(1.01)
        y = ((x[device] @ x[device]).relu() + 1).log()
        kept[device].append(y)
        return y

    check(step, parts=1, tolerance=1e-4)
    for found, expected in zip(kept["dtorch"], kept["cpu"], strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_writes_in_place():
    x = on_both(64, 64)

    def step(device, i):
        row = x[device][3]
        x[device].mul_(0.9).add_(x[device].t() / 10)
        row.add_(1)
        return x[device] * row

    check(step, parts=1)


def test_views_that_outlive_the_part():
    x = on_both(64, 64)

    def step(device, i):
        y = x[device].tanh() * 2 + x[device]
        left, right = y[:, :32], y[:, 32:].t()
        rows = x[device][::2]
        left.add_(1)
        between(device)
        y.mul_(2)
        return torch.cat([left, right.t(), y, rows.repeat(2, 1)], 1)

    check(step, parts=None)
    assert counts()[0] >= STEADY


def test_a_number_that_changes_late():
    x = on_both(64, 64)

    def step(device, i):
        y = ((x[device] @ x[device]).relu() + x[device]).tanh()
        return ((y * (3.0 if i < 8 else 4.0)).tanh() + y).abs().sqrt().log1p()

    check(step, parts=2)


def test_waits_of_the_host_within():
    x = on_both(64, 64)

    def step(device, i):
        release()
        y = (x[device] @ x[device]).relu() + x[device] + i
        where = y.gt(1).nonzero()
        return ((y * 2).tanh() + 1).log()[where[:, 0]].sum(0) + y.masked_select(y > 2).sum()

    check(step, parts=None, tolerance=1e-4)


def test_an_operator_that_fails():
    x = torch.eye(16)
    for i in range(TIMES):
        bad = i == TIMES - 2
        y = (torch.zeros(16, 16) if bad else x).to("dtorch")
        made = torch.linalg.inv(((y * 2).relu() * 3).abs() * 1) @ y
        other = ((y + 1).exp() * 2).sqrt().tanh()
        if bad:
            with pytest.raises(dt.WorkerError, match="singular"):
                made.cpu()
        else:
            torch.testing.assert_close(made.cpu(), x / 6)
        torch.testing.assert_close(other.cpu(), ((y.cpu() + 1).exp() * 2).sqrt().tanh())
        settle()


@pytest.mark.asserts_on_device
def test_a_graph_that_fails():
    x = torch.randn(64, 64)
    table = x.to("dtorch")
    for i in range(TIMES):
        rows = torch.arange(5) + (100 if i in (TIMES - 4, TIMES - 1) else 0)
        other = ((table * 2 + 1).sin() @ table).relu()
        found = (nn.functional.embedding(rows.to("dtorch"), table) * 2 + 1).sin() + other[:5]
        if rows[0]:
            with pytest.raises(dt.WorkerError, match="aten::embedding.*index out of range"):
                found.cpu()
        else:
            expected = (x[:5] * 2 + 1).sin() + ((x * 2 + 1).sin() @ x).relu()[:5]
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(other.cpu(), ((x * 2 + 1).sin() @ x).relu(),
                                   rtol=1e-4, atol=1e-4)  # fmt: skip
        settle()
    assert counts()[0] > 0


# Forward, backward and all of SGD's step are one; AdamW's numbers grow with the steps.
@pytest.mark.parametrize("make, parts", [
    (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
    (lambda p: torch.optim.AdamW(p, lr=0.01), 1),
    (lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False), 6),
], ids=["SGD", "AdamW", "AdamW of single tensors"])
def test_training(make, parts):
    batches = torch.randn(MOST, 16, 24)
    models, optimizers = {}, {}
    for device in ("cpu", "dtorch"):
        torch.manual_seed(0)
        layers = nn.Linear(24, 48), nn.ReLU(), nn.LayerNorm(48), nn.Linear(48, 8)
        models[device] = nn.Sequential(*layers).to(device)
        optimizers[device] = make(models[device].parameters())

    def step(device, i):
        loss = models[device](batches[i].to(device)).logsumexp(1).mean()
        loss.backward()
        optimizers[device].step()
        optimizers[device].zero_grad()
        return loss.detach()

    check(step, parts=parts, tolerance=1e-4)


@pytest.mark.skipif(torch.version.cuda is None, reason="of PyTorch's allocator for CUDA")
def test_memory_of_what_does_not_fit():
    """It goes back, and graphs can be made afterwards."""
    x, captures = torch.zeros(4, device="cuda"), Captures()

    def capture(waits):
        captures.begin()
        held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        x.copy_(y)
        if waits:
            with pytest.raises(RuntimeError, match="captur"):
                torch.cuda.current_stream().synchronize()
        del held
        return captures.end()

    with torch.cuda.stream(torch.cuda.Stream()):
        y = torch.ones_like(x)
        torch.cuda.current_stream().synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="captur"):
                capture(waits=True)
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == before
        made = capture(waits=False)
        made[0].replay()
        assert x.tolist() == [1] * 4


def test_without_the_setting():
    dt.shutdown()
    dt.init()
    x = on_both(64, 64)
    check(lambda device, i: ((x[device] @ x[device]).relu() + x[device]).tanh().sum(0), parts=0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shape", [(1,), (2,)])
def test_random_programs(shape):
    dt.shutdown()
    dt.init(workers=torch.Size(shape).numel(), cuda_graphs=True)
    mesh = dt.init_device_mesh(shape)
    found = hunt(mesh, seed=31, examples=20, times=12)
    assert found is None, f"{text(found[0], mesh)}\n{found[1]}"
    assert counts()[0] > 100
