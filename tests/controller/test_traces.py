"""What the program does again is replayed: the same values, less on the wire."""

import gc

import pytest
import torch
import torch.nn.functional as F
from launching import run_job

import dtorch_mpi as dt

TIMES = 6


@pytest.fixture(autouse=True)
def no_collector():
    """Tensors of earlier tests that it frees in the midst of a window would be a departure."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def since(before):
    return {name: value - before[name] for name, value in dt.debug.counters().items()}


def both(program, times=TIMES):
    """What `program(device, step)` returns at each step, by plain PyTorch and by the workers.

    Also the counters' growth over the last of the steps.
    """
    expected = [program("cpu", step) for step in range(times)]
    found = []
    for step in range(times):
        if step == times - 1:
            dt.runtime.current().main.planner.wait()
        dt.sync()
        before = dt.debug.counters()
        found.append(program("dtorch", step).cpu())
        growth = since(before)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    return growth


def chain(x, length=12):
    for i in range(length):
        x = torch.relu(x @ x.T) * 0.125 + i
    return x


def test_a_repeated_stretch_is_replayed():
    growth = both(lambda device, step: chain(torch.full((4, 4), 0.5, device=device)))
    assert growth["departures"] == 0
    assert growth["replayed_records"] >= growth["records_issued"] - 3
    assert growth["bytes_sent"] < growth["bytes_issued"] / 5


def test_scalars_that_change():
    def program(device, step):
        x = torch.full((3, 5), 0.1, device=device)
        for _ in range(8):
            x = torch.add(x, x, alpha=step + 0.25) * (1 / (step + 1)) + 7 * step
        return x

    assert both(program)["departures"] == 0


def test_positions_that_change():
    table = torch.arange(40.0).reshape(20, 2)
    on = {"cpu": table, "dtorch": table.to("dtorch")}

    def program(device, step):
        rows = on[device][step:step + 3]
        return chain(rows, 6)[step % 3]

    growth = both(program)
    assert growth["departures"] == 0 and growth["replays"] >= 1


def test_data_that_is_uploaded_each_time():
    def program(device, step):
        small = torch.arange(6.0).reshape(2, 3) + step
        large = torch.ones(64, 64) * step
        return chain(small.to(device), 4) @ torch.ones(2, 64, device=device) @ large.to(device)

    growth = both(program)
    assert growth["departures"] == 0 and growth["replays"] >= 1


def test_results_that_are_kept():
    """Their slots are not free again: each step has others."""
    kept = {"cpu": [], "dtorch": []}

    def program(device, step):
        x = torch.full((4, 4), 0.5 + step, device=device)
        for _ in range(5):
            x = torch.relu(x @ x.T) * 0.01
            kept[device].append(x)
        return x

    growth = both(program, times=8)
    assert growth["departures"] == 0 and growth["replays"] >= 1
    for found, expected in zip(kept["dtorch"], kept["cpu"], strict=True):
        assert torch.equal(found.cpu(), expected)


def test_another_way_now_and_then():
    def program(device, step):
        x = chain(torch.full((4, 4), 0.5, device=device), 5)
        if step % 3 == 1:
            x = x.sigmoid().cumsum(0)
        return chain(x, 5)

    growth = both(program, times=14)
    assert growth["departures"] == 0
    assert growth["replayed_records"] >= growth["records_issued"] - 3


def test_leaving_with_temporaries_alive():
    def program(device, step):
        x = torch.full((4, 4), 0.5, device=device)
        parts = [x + i for i in range(10)]
        if step >= 4:
            parts[step].mul_(step)  # each time another: never seen before
            x = x.exp()
        return torch.stack(parts).sum(0) + x

    both(program, times=9)


def test_the_same_tensor_twice_is_another_graph():
    def program(device, step):
        x = torch.full((4,), 1.0, device=device)
        y = x if step % 2 else torch.full((4,), 2.0, device=device)
        for _ in range(6):
            x.add_(y)
            y.mul_(0.5)
        return x + y

    both(program, times=10)


def test_another_size_and_dtype():
    def program(device, step):
        dtype = torch.float64 if step % 4 == 3 else torch.float32
        return chain(torch.full((3 + step % 2, 4), 0.5, device=device, dtype=dtype))

    both(program, times=16)


def test_writes_through_views():
    def program(device, step):
        x = torch.zeros(6, 6, device=device)
        for i in range(6):
            x[i, i:].add_(i + step)
            x[:, i] *= 2
        return x.t().contiguous().view(4, 9)

    growth = both(program)
    assert growth["departures"] == 0 and growth["replays"] >= 1


def train(device, steps, *, sharded=False):
    torch.manual_seed(5)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(0.0), torch.nn.Linear(16, 4)
    ).to(device)
    if sharded:
        mesh = dt.init_device_mesh((dt.num_workers(),))
        dt.distribute_module(model, mesh, {"0.weight": [dt.Shard(0)], "0.bias": [dt.Shard(0)]})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    losses, growth, first = [], {}, None
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(6, 8, generator=generator), torch.randint(4, (6,), generator=generator)
        if device == "dtorch":
            dt.sync()
            before = dt.debug.counters()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
        if device == "dtorch":
            dt.sync()
            growth = since(before)
            first = growth["bytes_sent"] if first is None else first
    return torch.stack(losses).cpu(), growth | {"first": first}


def test_a_training_step():
    expected, _ = train("cpu", 12)
    found, growth = train("dtorch", 12)
    assert torch.equal(found, expected)
    assert growth["departures"] == 0 and growth["misses"] == 0
    assert growth["bytes_sent"] < 0.25 * growth["first"]  # of some 100 records


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_training_step_on_several_workers(workers):
    dt.shutdown()
    try:
        dt.init(workers=workers)
        expected, _ = train("cpu", 10)
        found, growth = train("dtorch", 10, sharded=True)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        assert growth["departures"] == 0
        assert growth["replayed_records"] > 0.9 * growth["records_issued"]
    finally:
        dt.shutdown()


def test_random_numbers_are_the_same():
    def program():
        torch.manual_seed(11)
        values = []
        for _ in range(TIMES):
            x = torch.ones(32, device="dtorch")
            for _ in range(4):
                x = F.dropout(x + torch.randn(32, device="dtorch"), 0.3)
            values.append(x.cpu())
        return torch.stack(values)

    dt.shutdown()
    replayed = program()
    assert dt.debug.counters()["replays"] > 0
    dt.shutdown()
    dt.init(traces=False)
    plain = program()
    assert dt.debug.counters()["replays"] == 0
    dt.shutdown()
    assert torch.equal(replayed, plain)


def test_an_error_within_a_replay_names_the_line():
    table = torch.arange(12.0, device="dtorch").reshape(6, 2)
    source = torch.arange(6, device="dtorch")

    def program(offset):
        rows = source + offset
        for i in range(6):
            rows = rows + i - i
        found = F.embedding(rows, table)  # the line of the failure
        return (found * 2).sum()

    for _ in range(5):
        assert program(0).item() == 132
    before = dt.debug.counters()
    with pytest.raises(dt.WorkerError, match="embedding") as raised:
        program(3).item()
    assert since(before)["replayed_records"] > 20
    line = program.__code__.co_firstlineno + 4
    assert f"test_traces.py:{line}" in str(raised.value)
    assert "int64[6]" in str(raised.value).lower() or "Long[6]" in str(raised.value)
    for _ in range(3):
        assert program(0).item() == 132


def test_failed_writes_spoil_what_they_should():
    def program(matrix):
        x = torch.zeros(3, 3, device="dtorch")
        for _ in range(6):
            x = x + matrix
        factor = torch.linalg.cholesky(x)
        return factor.sum() + 1

    good = torch.eye(3, device="dtorch")
    expected = torch.linalg.cholesky(torch.eye(3) * 6).sum() + 1
    for _ in range(5):
        assert torch.equal(program(good).cpu(), expected)
    with pytest.raises(dt.WorkerError, match="cholesky"):
        program(-good).item()
    assert torch.equal(program(good).cpu(), expected)


def test_no_read_marks_the_loop():
    """A loop that reads nothing: its windows are cut where its records say so."""
    x, b = torch.zeros(4, device="dtorch"), torch.ones(4, device="dtorch")
    before = dt.debug.counters()
    for _ in range(5000):
        x = x + b
    assert x.tolist() == [5000.0] * 4
    growth = since(before)
    assert growth["replayed_records"] > 0.7 * growth["records_issued"]


def test_reads_at_odd_distances():
    x, b = torch.zeros(4, device="dtorch"), torch.ones(4, device="dtorch")
    total = 0
    for step in range(12):
        count = 600 + 7 * step
        for _ in range(count):
            x = x + b
        total += count
        assert x[0].item() == total
    assert dt.debug.counters()["replays"] > 50


def test_steps_that_are_marked():
    x = torch.full((4, 4), 0.5, device="dtorch")
    for _ in range(2 * TIMES):
        dt.sync()
        before = dt.debug.counters()
        x = chain(x, 3).softmax(-1)
        dt.mark_step()
        dt.sync()
    assert since(before)["replays"] == 1


def test_plans_are_bounded():
    """The oldest go, and what they did still comes out right."""
    dt.shutdown()
    for _ in range(3):
        for size in range(1, 1101):
            x = torch.ones(size, device="dtorch")
            for _ in range(4):
                x = x + x
            dt.mark_step()
    assert x.tolist() == [16.0] * 1100
    counters = dt.debug.counters()
    assert counters["plans"] > 1024
    assert counters["live_slots"] < 20


@pytest.mark.parametrize("workers", [1, 3])
def test_under_mpirun(tmp_path, workers):
    script = tmp_path / "script.py"
    script.write_text("""
import torch, dtorch_mpi as dt
dt.init()
mesh = dt.init_device_mesh((dt.num_workers(),))
weight = dt.distribute_tensor(torch.arange(24.0).reshape(6, 4) / 100, mesh, [dt.Shard(0)])
for step in range(8):
    x = torch.full((4, 2), 0.5 + step, device="dtorch")
    y = torch.full((4, 2), 0.5 + step)
    for i in range(6):
        x = torch.tanh(weight.T @ (weight @ x)) + i
        w = torch.arange(24.0).reshape(6, 4) / 100
        y = torch.tanh(w.T @ (w @ y)) + i
    torch.testing.assert_close(x.cpu(), y)
counters = dt.debug.counters()
assert counters["replays"] >= 5, counters
assert counters["departures"] == 0, counters
print("right")
""")
    ended = run_job(script, launcher="mpirun", workers=workers)
    assert ended.code == 0, ended.err
    assert "right" in ended.out
