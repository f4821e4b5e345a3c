"""Chains of operators as one kernel of Triton's on GPUs (DTORCH_TRITON): PyTorch's values but for
rounding, and that they are what runs."""

import importlib.util
import os

import pytest
import torch

import dtorch_mpi as dt

pytest.importorskip("triton", reason="PyTorch for CUDA brings it")
pytestmark = pytest.mark.skipif(os.environ["DTORCH_DEVICE"] != "gpu", reason="for GPUs alone")
TIMES = 8
CLOSE = {torch.bfloat16: 2e-2, torch.float32: 2e-6, torch.float64: 1e-14}


@pytest.fixture(autouse=True)
def fresh():
    dt.shutdown()
    yield
    dt.shutdown()


def start(**settings):
    dt.init(triton=True, **settings)


def calls_of(name):
    """How often workers have run an operator."""
    stages = max(dt.debug.graph(), key=lambda stages: len(stages["program"]))
    return stages["fusion"].count(f"{name}(")


def settle():
    dt.mark_step()
    dt.sync()
    dt.runtime.current().main.planner.wait(100, kernels=True)


def check(program, *, fused=1, rows=0, like=lambda x: x.cpu()):
    """program(device, step) on the device as on the CPU; at last by so many kernels."""
    for step in range(TIMES):
        found, expected = program("dtorch", step), program("cpu", step)
        for ours, theirs in zip(found, expected, strict=True):
            close = CLOSE.get(theirs.dtype, 0)
            torch.testing.assert_close(like(ours), theirs, rtol=close, atol=close, equal_nan=True)
        del ours, found
        settle()
    assert (calls_of("dtorch::fused"), calls_of("dtorch::fused_rows")) == (fused, rows)
    assert dt.debug.counters()["failed_kernels"] == 0


def line(n, dtype=torch.float32):
    return torch.linspace(-3, 3, n, dtype=torch.float64).to(dtype)


# Of bfloat16 a comparison with a number is left out.
@pytest.mark.parametrize(("dtype", "fused"), [
    (torch.float32, 1), pytest.param(torch.float64, 1, marks=pytest.mark.sweep),
    (torch.bfloat16, 2)])  # fmt: skip
def test_a_chain_whose_numbers_change(dtype, fused):
    start()
    x = line(30_021, dtype)

    def program(device, step):
        y = (x.to(device) * (1 + step) - 0.5).tanh()
        return y.sigmoid() * y, (y > 0.1) & ~(y > 0.5)

    check(program, fused=fused)


def test_whole_numbers_and_masks():
    start()
    x = torch.arange(-10_000, 10_021)

    def program(device, step):
        y = (x.to(device) * (step - 3) + 7).abs()
        return torch.where(y > 900, y - 900, y).masked_fill(y.eq(70), -1), ~(y > 900)

    check(program)


@pytest.mark.parametrize("sizes", [
    (67,), (5, 1, 67), *(pytest.param(sizes, marks=pytest.mark.sweep)
                         for sizes in ((5, 1, 1), (1, 61, 1), (61, 1), ()))])  # fmt: skip
def test_an_operand_of_fewer_elements(sizes):
    start()
    x = line(5 * 61 * 67).view(5, 61, 67)
    operand = line(max(1, torch.Size(sizes).numel())).view(sizes) + 0.25

    def program(device, step):
        return ((x.to(device) * operand.to(device) + (1 + step)).relu() - 0.5,)

    check(program)


@pytest.mark.parametrize("sizes", [(120, 150), (120, 1), (150,)])
def test_what_begins_in_the_midst_of_memory(sizes):
    start()
    x, base = line(18_000).view(120, 150), line(18_004)

    def program(device, step):
        operand = base.to(device)[3 : 3 + torch.Size(sizes).numel()].view(sizes)
        return ((x.to(device) * operand + step).sin() + 1,)

    check(program)


@pytest.mark.parametrize(("rows", "columns"), [
    (301, 70), (32, 1000), *(pytest.param(*sizes, marks=pytest.mark.sweep)
                             for sizes in ((33, 3000), (32, 5000)))])  # fmt: skip
def test_rows_of_many_lengths(rows, columns):
    start()

    def program(device, step):
        x = line(rows * columns).view(rows, columns).to(device)
        row = line(columns).to(device)
        y = torch.softmax(x * row + step, -1)
        return y, (y * 2).sum(-1, keepdim=True), torch.log_softmax(x - row, -1)

    check(program, fused=0, rows=2)


def test_the_largest_and_smallest_of_rows():
    start()

    def program(device, step):
        x = line(33 * 520).view(33, 520).to(device) * (1 + step)
        return (x - 1).amax(-1), (x + 1).amin(-1), (x * 2).mean(-1)

    check(program, fused=0, rows=1)


@pytest.mark.sweep
def test_the_backward_pass_of_a_softmax():
    start()
    x = line(301 * 70).view(301, 70)

    def program(device, step):
        leaf = x.to(device).detach().requires_grad_()
        y = torch.softmax(leaf * (1 + step), -1)
        (torch.log_softmax(y * 3, -1) * x.to(device)).sum(-1).sum().backward()
        return y.detach(), leaf.grad / 10

    for step in range(TIMES):
        for found, expected in zip(program("dtorch", step), program("cpu", step), strict=True):
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
        settle()
    assert calls_of("dtorch::fused_rows") >= 2


def test_uneven_parts_of_three_workers():
    start(workers=3)
    mesh = dt.init_device_mesh((3,))
    whole = line(10_007 * 3).view(10_007, 3)
    placed = dt.distribute_tensor(whole, mesh, [dt.Shard(0)])

    def program(device, step):
        x = placed if device == "dtorch" else whole
        return ((x * (1 + step) + 0.25).tanh().relu(),)

    check(program)


def test_within_graphs_of_the_device():
    start(cuda_graphs=True)
    x = line(30_021)
    on_device = x.to("dtorch")

    def program(device, step):
        y = on_device if device == "dtorch" else x
        for _ in range(5):
            y = torch.flip((y * 0.9 + 0.1).tanh() - 0.2, [0])
        return (y,)

    check(program, fused=5)
    (worker,) = dt.runtime.current()._hosted.workers
    runs = []
    for step in range(3 * TIMES):
        before = worker.num_graphs_replayed
        (found,) = program("dtorch", step)
        torch.testing.assert_close(found.cpu(), program("cpu", step)[0], rtol=2e-6, atol=2e-6)
        settle()
        runs.append(worker.num_graphs_replayed - before)
    assert all(runs[-TIMES:]), runs


def test_optimizers_keep_kernels_of_many_tensors():
    start()
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(130, 130) for _ in range(3))).to("dtorch")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(8, 130).to("dtorch")
    for _ in range(TIMES):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        settle()
    stages = max(dt.debug.graph(), key=lambda stages: len(stages["program"]))
    assert "dtorch::fused_lists" not in stages["fusion"]
    assert "aten::_foreach" in stages["fusion"]


def test_without_triton_operators_run_one_by_one(monkeypatch, tmp_path, caplog):
    (tmp_path / "triton.py").write_text("raise ImportError('hidden')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)  # the compiler's
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec",
                        lambda name: None if name == "triton" else find_spec(name))
    start(cache=str(tmp_path / "cache"), log="warning")
    assert "there is no Triton here" in caplog.text
    x = line(30_021)
    for step in range(TIMES):
        found = (x.to("dtorch") * (1 + step) - 0.5).tanh()
        torch.testing.assert_close(found.cpu(), (x * (1 + step) - 0.5).tanh())
        settle()
    assert calls_of("dtorch::fused") == 0 and dt.debug.counters()["failed_kernels"] == 1


def test_off_unless_asked_for():
    dt.init()
    x = line(30_021)

    def program(device, step):
        return ((x.to(device) * (1 + step) - 0.5).tanh(),)

    check(program, fused=0)
