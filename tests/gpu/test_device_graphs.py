"""Parts of plans as graphs of the device (DTORCH_CUDA_GRAPHS): the same values, whatever changes
from run to run."""

import os
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import dtorch_mpi as dt
from dtorch_mpi.kernels import call, kernel

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from fuzz import hunt  # noqa: E402
from fuzz_programs import text  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ["DTORCH_DEVICE"] != "gpu", reason="CPUs have no graphs")
TIMES = 16
GATHER = 20_000  # microseconds


@pytest.fixture(autouse=True)
def fresh():
    dt.shutdown()
    dt.init(cuda_graphs=True, gather_us=GATHER)
    yield
    dt.shutdown()


def hold():
    """Keep the workers busy for a moment: what is issued meanwhile comes in one batch, and a part
    runs as a graph only where all its records do."""
    call("tests.hold", [], sizes=[1], dtype=torch.float32)


@kernel("tests.hold")
def _hold(context):
    time.sleep(0.03)
    return torch.zeros(1, device=context.device)


def settle():
    dt.mark_step()
    dt.sync()
    dt.runtime.current().main.planner.wait()


def replayed():
    return sum(worker.num_graphs_replayed for worker in dt.runtime.current()._hosted.workers)


def check(step, *, graphs=True, tolerance=1e-5):
    """step(device, i): on the device as on the CPU, TIMES times over, and longer until a graph has
    run if one is expected: whether a part can, is the moment's."""
    before = replayed()
    for i in range(8 * TIMES):
        if i >= TIMES and (graphs is not True or replayed() > before):
            break
        hold()
        found = step("dtorch", i)
        expected = step("cpu", i)
        torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=tolerance)
        del found
        settle()
    assert graphs is None or (replayed() > before) == graphs, replayed() - before


def on_both(make):
    torch.manual_seed(0)
    made = make()
    return {"cpu": made, "dtorch": made.to("dtorch")} if isinstance(made, torch.Tensor) else made


def test_a_chain():
    x = on_both(lambda: torch.randn(64, 64) / 8)
    check(lambda device, i: ((x[device] @ x[device]).relu() + x[device]).tanh().sum(0))


def test_an_input_that_is_somewhere_else_each_time():
    kept = []

    def step(device, i):
        x = torch.full((32, 32), float(i)).to(device)
        kept.append(x)  # so that its memory is not taken again
        return ((x * 2 + 1).sqrt() - x).exp().sum(1)

    check(step)


def test_results_that_are_kept():
    x = on_both(lambda: torch.randn(64, 64) / 8)
    kept = []
    for _ in range(TIMES):
        hold()
        x["dtorch"].mul_(1.1)
        kept.append(((x["dtorch"] @ x["dtorch"]).relu() + 1).log())
        settle()
    for made in kept:
        x["cpu"].mul_(1.1)
        expected = ((x["cpu"] @ x["cpu"]).relu() + 1).log()
        torch.testing.assert_close(made.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_writes_in_place():
    x = on_both(lambda: torch.randn(64, 64) / 8)

    def step(device, i):
        row = x[device][3]
        x[device].mul_(0.9).add_(x[device].t() / 10)
        row.add_(1)
        return x[device] * row

    check(step)


def test_views_that_outlive_the_part():
    x = on_both(lambda: torch.randn(64, 64) / 8)

    def step(device, i):
        y = x[device].tanh() * 2 + x[device]
        left, right = y[:, :32], y[:, 32:].t()
        rows = x[device][::2]
        left.add_(1)
        settle()
        y.mul_(2)
        return torch.cat([left, right.t(), y, rows.repeat(2, 1)], 1)

    check(step)


def test_numbers_that_change():
    x = on_both(lambda: torch.randn(64, 64) / 8)

    def step(device, i):
        y = (x[device] @ x[device]).relu() + x[device]
        y = (y * (i + 1)).tanh() + 1
        return ((y @ y).relu() + y).exp().sum() / 1000

    check(step, tolerance=1e-4)


def test_a_number_that_changes_late():
    x = on_both(lambda: torch.randn(64, 64) / 8)

    def step(device, i):
        y = (x[device] @ x[device]).relu() + x[device]
        return ((y * (3.0 if i < TIMES - 4 else 4.0)).tanh() + y).abs().sqrt().log1p()

    check(step)


def test_waits_of_the_host_within():
    x = on_both(lambda: torch.randn(64, 64) / 8)

    def step(device, i):
        y = (x[device] @ x[device]).relu() + x[device] + i
        where = y.gt(1).nonzero()
        return ((y * 2).tanh() + 1).log()[where[:, 0]].sum(0) + y.masked_select(y > 2).sum()

    check(step, graphs=None, tolerance=1e-4)


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


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.AdamW(p, lr=0.01),
    lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
], ids=["SGD", "AdamW", "AdamW of single tensors"])
def test_training(make):
    torch.manual_seed(0)
    results = {}
    batches = torch.randn(TIMES, 16, 24)
    for device in ("cpu", "dtorch"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(24, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 8))
        model = model.to(device)
        optimizer = make(model.parameters())
        losses = []
        for batch in batches:
            if device == "dtorch":
                hold()
            loss = model(batch.to(device)).logsumexp(1).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            if device == "dtorch":
                settle()
        results[device] = [loss.item() for loss in losses]
    assert results["dtorch"] == pytest.approx(results["cpu"], rel=1e-4)


def test_collectives_between():
    dt.shutdown()
    dt.init(workers=2, cuda_graphs=True, gather_us=GATHER)
    mesh = dt.init_device_mesh((2,))
    full = torch.randn(64, 64) / 8
    x = dt.distribute_tensor(full, mesh, [dt.Shard(0)])
    for _ in range(TIMES):
        hold()
        y = (x * 2).relu().tanh() + x
        total = y.sum(0).redistribute(mesh, [dt.Replicate()])
        found = ((total * 3).exp() + 1).log().sqrt()
        made = (full * 2).relu().tanh() + full
        expected = ((made.sum(0) * 3).exp() + 1).log().sqrt()
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
        settle()


def test_without_the_setting():
    dt.shutdown()
    dt.init()
    x = on_both(lambda: torch.randn(64, 64) / 8)
    check(lambda device, i: ((x[device] @ x[device]).relu() + x[device]).tanh().sum(0),
          graphs=False)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shape", [(1,), (2,)])
def test_random_programs(shape):
    dt.shutdown()
    dt.init(workers=torch.Size(shape).numel(), cuda_graphs=True, gather_us=GATHER)
    mesh = dt.init_device_mesh(shape)
    found = hunt(mesh, seed=31, examples=20, times=8)
    assert found is None, f"{text(found[0], mesh)}\n{found[1]}"
