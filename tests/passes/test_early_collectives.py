"""Collectives that begin before their turn, and go on beside other operators."""

import subprocess
import sys
import textwrap

import pytest
import torch
from repeated import REWRITTEN, TIMES, settle

import dtorch_mpi as dt
from dtorch_mpi import Replicate, Shard


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 32), torch.nn.GELU(),
        torch.nn.Linear(32, 4),
    )  # fmt: skip


def trained(layers, x, y, steps, settle=lambda: None):
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, foreach=False)
    losses = []
    for step in range(steps):
        if step == REWRITTEN:
            settle()
        loss = torch.nn.functional.cross_entropy(layers(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def rewritten_step(workers, plan):
    """Train a model placed by a plan; returns its window as the pass has left it."""
    dt.shutdown()
    dt.init(workers=workers)
    mesh = dt.init_device_mesh((workers,))
    x, y = torch.randn(12, 16), torch.randint(4, (12,))
    expected = trained(model(), x, y, TIMES)
    ours = dt.distribute_module(model().to("dtorch"), mesh, plan)
    found = trained(ours, dt.distribute_tensor(x, mesh, [Shard(0)]),
                    dt.distribute_tensor(y, mesh, [Shard(0)]), TIMES, settle)  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    return max(dt.debug.graph(), key=lambda stages: len(stages["program"]))["early_collectives"]


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_gradients_are_reduced_together_and_early(workers):
    text = rewritten_step(workers, {})
    begun = [line for line in text.splitlines() if line.startswith("begin(")]
    assert sum(line.count("%") for line in begun) >= 6  # the gradients of six parameters
    assert len(begun) < 6
    # Before the first parameter is written.
    assert text.index(begun[0]) < text.index("aten::add_.Tensor(")


@pytest.mark.parametrize("workers", [2, 4])
def test_fully_sharded_weights_are_gathered_one_ahead(workers):
    text = rewritten_step(workers, {"*": [Shard(0)]})
    lines = text.splitlines()
    begun = [at for at, line in enumerate(lines) if line.startswith("begin(")]
    assert begun
    for at in begun:
        value = lines[at][len("begin("):].split(",")[0].rstrip(")")
        assert any(line.startswith(value + ": ") for line in lines[at:])


def test_a_write_is_waited_for():
    dt.shutdown()
    dt.init(workers=2)
    mesh = dt.init_device_mesh((2,))
    for step in range(TIMES):
        if step == REWRITTEN:
            settle()
        dt.sync()
        x = dt.distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
        view = x[:]
        y = x.exp()
        for _ in range(6):
            y = y.sin()
        view.add_(step)  # writes to what the gather reads
        found = x.redistribute(mesh, [Replicate()]) + y
        expected = torch.arange(8.0).exp()
        for _ in range(6):
            expected = expected.sin()
        expected = torch.arange(8.0) + step + expected
        torch.testing.assert_close(found.to_torch(), expected)


def test_a_value_is_waited_for_where_it_is_read():
    dt.shutdown()
    dt.init(workers=2, collective_delay_us=500_000)
    try:
        mesh = dt.init_device_mesh((2,))
        x = dt.distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])
        dt.sync()
        whole = x.redistribute(mesh, [Replicate()])
        other = (x * 2).to_torch_async()
        gathered = whole.to_torch_async()
        # Each worker's part of the other comes while the gather goes on.
        torch.testing.assert_close(other.get(), torch.arange(6.0) * 2)
        assert not gathered.is_ready()
        torch.testing.assert_close(gathered.get(), torch.arange(6.0))
        freed = x.redistribute(mesh, [Replicate()])
        del freed
        x.mul_(3)  # the gather has its own copy
        late = x.redistribute(mesh, [Replicate()])
        x.mul_(2)
        torch.testing.assert_close(late.to_torch(), torch.arange(6.0) * 3)
        dt.sync()
    finally:
        dt.shutdown()


def test_a_failed_part_is_known_behind_a_collective_that_goes_on():
    dt.shutdown()
    dt.init(workers=2, collective_delay_us=100_000)
    try:
        mesh = dt.init_device_mesh((2,))
        index = dt.distribute_tensor(torch.tensor([0, 1, 2, 99]), mesh, [Shard(0)])
        table = dt.distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Replicate()])
        rows = torch.nn.functional.embedding(index, table)
        whole = rows.redistribute(mesh, [Replicate()])
        with pytest.raises(dt.WorkerError, match="embedding"):
            (whole + 1).to_torch()
        torch.testing.assert_close((table + 1).to_torch(), torch.arange(8.0).reshape(4, 2) + 1)
    finally:
        dt.shutdown()


def test_what_a_region_makes_that_one_worker_leaves_out():
    """A worker with a failure of its own runs the program's operators where others run a kernel."""
    dt.shutdown()
    dt.init(workers=2)
    mesh = dt.init_device_mesh((2,))
    values = [torch.linspace(-1, 1, 20_000).reshape(200, 100) * k for k in (1, 2)]
    ours = [dt.distribute_tensor(value, mesh, [Shard(0)]) for value in values]
    index = dt.distribute_tensor(torch.tensor([0, 1, 2, 99]), mesh, [Shard(0)])
    lost = dt.distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)])
    table = dt.distribute_tensor(torch.ones(4, 2), mesh)
    lost.add_(torch.nn.functional.embedding(index, table))  # on the second worker only
    with pytest.raises(dt.WorkerError, match="embedding"):
        dt.sync()

    def program(tensors, step, whole):
        more = [tensor.sin() for tensor in tensors]
        torch._foreach_add_(tensors, more)
        del more  # freed in the midst of what the kernel does
        torch._foreach_mul_(tensors, 0.5 + 0.01 * step)
        other = tensors[1]
        for _ in range(6):
            other = other.cos()
        return whole(tensors[0]) + whole(other)

    for step in range(TIMES):
        if step == REWRITTEN:
            settle(kernels=True)
        found = program(ours, step, lambda tensor: tensor.redistribute(mesh, [Replicate()]))
        torch.testing.assert_close(found.to_torch(), program(values, step, lambda tensor: tensor))
    stages = max(dt.debug.graph(), key=lambda stages: len(stages["program"]))
    lines = stages["early_collectives"].splitlines()
    call = next(at for at, line in enumerate(lines) if "dtorch::fused_lists" in line)
    assert lines[call + 1].startswith("begin(")


def test_under_mpirun(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent("""
        import torch, dtorch_mpi as dt
        dt.init(collective_delay_us=20_000)
        mesh = dt.init_device_mesh((dt.num_workers(),))
        x = dt.distribute_tensor(torch.arange(24.0).reshape(8, 3), mesh, [dt.Shard(0)])
        for step in range(8):
            if step == 5:
                dt.sync()
                dt.runtime.current().main.planner.wait()
            total = (x + step).sum(0)
            y = x
            for _ in range(6):
                y = y.sin()
            found = (y + total.redistribute(mesh, [dt.Replicate()])).to_torch()
            whole = torch.arange(24.0).reshape(8, 3)
            expected = whole
            for _ in range(6):
                expected = expected.sin()
            torch.testing.assert_close(found, expected + (whole + step).sum(0))
        assert any("begin(" in stages["early_collectives"] for stages in dt.debug.graph())
        print("right")
    """))
    run = subprocess.run(["mpirun", "-n", "3", sys.executable, script], capture_output=True,
                         text=True, timeout=100)  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "right" in run.stdout


def test_a_program_may_fail_while_a_pass_runs(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent("""
        import time, torch, dtorch_mpi as dt

        @dt.graph_pass
        def slow(graph):
            time.sleep(0.5)

        x = torch.ones(4, device="dtorch")
        for _ in range(3):
            for _ in range(10):
                x = x * 0.5
            x.sum().item()
        raise LookupError("on purpose")
    """))
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1, run.stderr
    assert "on purpose" in run.stderr and "Fatal" not in run.stderr
