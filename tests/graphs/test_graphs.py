"""Several graphs at once. Runs in any job: test_graph_jobs.py starts it with other workers."""

import threading
import time

import pytest
import torch
from worker_kernels import slow, uneven_sleep

import dtorch_mpi as dt


def test_operators_in_a_graph():
    x = torch.randn(5, 4)
    graph = dt.Graph()
    with graph:
        y = x.to("dtorch") @ torch.ones(4, 3, device="dtorch")
        z = y.relu() + 1
    assert torch.equal(z.cpu(), (x @ torch.ones(4, 3)).relu() + 1)
    assert torch.equal((z * 2).cpu(), ((x @ torch.ones(4, 3)).relu() + 1) * 2)
    graph.close()
    assert torch.equal(y.cpu(), x @ torch.ones(4, 3))  # its tensors stay


def test_graphs_run_at_the_same_time():
    graphs = [dt.Graph() for _ in range(3)]
    dt.sync()
    began = time.monotonic()
    results = [slow(0.5)]
    for graph in graphs:
        with graph:
            results.append(slow(0.5))
    for result in results:
        assert result.cpu().tolist() == [3.0, 3.0]
    assert time.monotonic() - began < 1.4  # one after the other: 2.0
    for graph in graphs:
        graph.close()


def test_a_sync_of_one_graph_does_not_wait_for_others():
    graph = dt.Graph()
    dt.sync()
    slow(1.0)
    with graph:
        x = torch.ones(3, device="dtorch") + 1
    began = time.monotonic()
    graph.sync()
    assert x.cpu().tolist() == [2.0] * 3
    assert time.monotonic() - began < 0.8
    future = graph.sync_future()
    future.wait(500)
    assert future.is_ready()
    graph.close()


def test_backward_through_graphs():
    x, w = torch.randn(6, 4), torch.randn(4, 4)

    def gradients(device, context):
        a = x.to(device).requires_grad_()
        b = w.to(device).requires_grad_()
        hidden = torch.tanh(a @ b)
        with context:
            loss = (hidden @ b).square().sum()
            loss.backward()
        return a.grad.cpu(), b.grad.cpu()

    class Nothing:
        def __enter__(self):
            pass

        def __exit__(self, *error):
            pass

    torch.testing.assert_close(gradients("dtorch", dt.Graph()), gradients("cpu", Nothing()))


def train(device, steps, seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    data, target = torch.randn(32, 8), torch.randn(32, 1)
    model = model.to(device)
    data, target = data.to(device), target.to(device)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


def test_two_threads_with_a_graph_each():
    expected = {seed: train("cpu", 30, seed) for seed in (1, 2)}
    found = {}
    lock = threading.Lock()

    def work(seed):
        with dt.Graph():
            with lock:  # the generator of the host is one for all threads
                torch.manual_seed(seed)
                model = torch.nn.Sequential(
                    torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
                )
                data, target = torch.randn(32, 8), torch.randn(32, 1)
            model, data, target = model.to("dtorch"), data.to("dtorch"), target.to("dtorch")
            optimizer = torch.optim.Adam(model.parameters(), 0.01)
            losses = []
            for _ in range(30):
                loss = torch.nn.functional.mse_loss(model(data), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            found[seed] = torch.stack(losses).cpu()

    threads = [threading.Thread(target=work, args=[seed]) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_backward_runs_in_the_graph_of_its_thread():
    found = []

    def work():
        with dt.Graph() as graph:
            x = torch.ones(2, device="dtorch", requires_grad=True)
            y = x * 2
            y.register_hook(lambda gradient: gradient * slow(0.5))
            y.sum().backward()
            began = time.monotonic()
            graph.sync()
            found.extend([time.monotonic() - began, x.grad.cpu().tolist()])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0] > 0.3
    assert found[1] == [6.0, 6.0]


def test_a_loop_in_a_graph_is_replayed():
    graph = dt.Graph()
    x = torch.full((4, 4), 0.5, device="dtorch")
    y = torch.full((4, 4), 0.5)
    with graph:
        for _ in range(8):
            for _ in range(10):
                x = torch.relu(x @ x.T) * 0.125 + 1
                y = torch.relu(y @ y.T) * 0.125 + 1
            dt.mark_step()
        graph.sync()
    counters = dt.runtime.current().engines[graph.number].controller.trace_counters()
    assert counters["replays"] >= 4
    torch.testing.assert_close(x.cpu(), y, rtol=0, atol=0)


def test_a_loop_over_two_graphs_is_replayed():
    graph = dt.Graph()
    x, y = torch.full((4, 4), 0.5, device="dtorch"), torch.full((4, 4), 0.5)
    dt.sync()
    before = dt.debug.counters()
    for _ in range(40):
        a, b = x, y
        for _ in range(10):
            a, b = torch.tanh(a) + 0.1, torch.tanh(b) + 0.1
        with graph:
            for _ in range(10):
                a, b = torch.sin(a) - 0.1, torch.sin(b) - 0.1
        x, y = x + a, y + b
    torch.testing.assert_close(x.cpu(), y, rtol=0, atol=0)
    graph.sync()
    both = {name: value - before[name] for name, value in dt.debug.counters().items()}
    other = dt.runtime.current().engines[graph.number].controller.trace_counters()
    assert other["replays"] >= 30 and both["replays"] >= 60
    assert both["departures"] <= 5


def test_settings_of_one_graph():
    graph = dt.Graph(traces=False, passes="none")
    x = torch.zeros(3, device="dtorch")
    with graph:
        for _ in range(100):
            x = x + 1
        graph.sync()
    assert dt.runtime.current().engines[graph.number].controller.trace_counters()["windows"] == 0
    assert x.cpu().tolist() == [100.0] * 3
    with pytest.raises(TypeError, match="workers can't differ between graphs"):
        dt.Graph(workers=2)
    with pytest.raises(TypeError, match="nonsense are no settings"):
        dt.Graph(nonsense=2)


def test_data_dependent_shapes_in_a_graph():
    x = torch.tensor([0.0, 1.0, 0.0, 2.0])
    on = x.to("dtorch")
    with dt.Graph():
        assert torch.equal(on.nonzero().cpu(), x.nonzero())
        assert torch.equal(on[on > 0].cpu(), x[x > 0])


def test_large_data_in_a_graph():
    x = torch.randn(400, 500)
    with dt.Graph():
        for _ in range(3):
            assert torch.equal((x.to("dtorch") + 1).cpu(), x + 1)


def sharded(mesh, value):
    return dt.distribute_tensor(value, mesh, [dt.Shard(0)])


def test_collectives_of_two_graphs_in_two_threads():
    """Workers are late at random places, each at others: without one order of the collectives,
    those of one graph would meet those of the other."""
    mesh = dt.init_device_mesh((dt.num_workers(),))
    values = [torch.randn(12, 6, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    found = {}

    def work(number):
        with dt.Graph():
            x = sharded(mesh, values[number])
            totals = []
            for step in range(40):
                if step % 4 == number:
                    uneven_sleep(0.01, 13 * step + number)
                full = dt.full_tensor(x)             # gathers
                y = full.sum(0) + x.sum()            # reduces
                x = x + y / (1 + step)
                x = x.redistribute(mesh, [dt.Shard(1)]).redistribute(mesh, [dt.Shard(0)])
                totals.append(y.sum())
            found[number] = torch.stack(totals).cpu()

    threads = [threading.Thread(target=work, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        x, totals = values[number], []
        for step in range(40):
            y = x.sum(0) + x.sum()
            x = x + y / (1 + step)
            totals.append(y.sum())
        torch.testing.assert_close(found[number], torch.stack(totals), rtol=1e-4, atol=1e-4)


def test_collectives_of_graphs_that_wait_for_each_other():
    mesh = dt.init_device_mesh((dt.num_workers(),))
    value = torch.randn(8, 4)
    x, expected = sharded(mesh, value), value.clone()
    graphs = [dt.Graph() for _ in range(3)]
    for step in range(60):
        with graphs[step % 3]:
            if step % 7 == 0:
                uneven_sleep(0.005, step)
            mean = x.mean(0, keepdim=True)
            y = x - mean
        with graphs[(step + 1) % 3]:
            z = dt.full_tensor(y).abs().sum()
        x.add_(z * 0.01)
        expected.add_((expected - expected.mean(0, keepdim=True)).abs().sum() * 0.01)
    torch.testing.assert_close(x.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_stats_and_memory_with_graphs():
    graph = dt.Graph()
    dt.sync()
    before = dt.stats()
    with graph:
        x = torch.ones(1000, device="dtorch")
        for _ in range(5):
            x = x + 1
    after = dt.stats()
    assert after["workers"][0]["operators"] - before["workers"][0]["operators"] >= 6
    assert torch.dtorch.memory_allocated() >= 4000
    assert x[0].item() == 6


def test_a_profile_shows_each_graph():
    graph = dt.Graph()
    with dt.profile() as profile:
        x = torch.ones(3, device="dtorch") * 2
        with graph:
            y = torch.ones(3, device="dtorch") / 2
        assert (x + y).cpu().tolist() == [2.5] * 3
    rows = {(event["pid"], event["tid"]): event["args"]["name"] for event in profile.events()
            if event["name"] == "thread_name"}
    found = {(event["name"], rows[event["pid"], event["tid"]]) for event in profile.events()
             if event["pid"] >= 2 and event.get("cat") == "operator"}
    own = f"graph {graph.number}: operators"
    assert ("aten::mul.Tensor", "operators") in found
    assert ("aten::div.Tensor", own) in found and ("aten::mul.Tensor", own) not in found
    graph.close()
