"""Branches of a window run at once, on streams of their own: the same values, and only where that
is worth it."""

import sys
from pathlib import Path

import pytest
import torch
from repeated import TIMES

import dtorch_mpi as dt
from dtorch_mpi.passes import assignment

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from fuzz import hunt  # noqa: E402
from fuzz_programs import text  # noqa: E402


@pytest.fixture
def branches():
    dt.shutdown()
    dt.init(streams="branches")
    yield
    dt.shutdown()


def ready():
    dt.sync()
    for engine in dt.runtime.current().engines.values():
        engine.planner.wait()


def two_branches(x, length=6):
    a, b = x, x + 1
    for _ in range(length):
        a, b = torch.tanh(a @ x), torch.sin(b @ x)
    return a - b


def repeated(program, device):
    """What a program of one tensor gives each time, on a device."""
    found = []
    for step in range(TIMES):
        x = (torch.arange(160 * 160.0).view(160, 160).sin() / (8 + step)).to(device)
        found.append(program(x).cpu())
        dt.mark_step()
        if device == "dtorch":
            ready()
    return found


def streams_of(window):
    return window.get("streams", "")


def test_two_branches(branches):
    found = repeated(two_branches, "dtorch")
    torch.testing.assert_close(found, repeated(two_branches, "cpu"))
    assert any("|   " in streams_of(window) for window in dt.debug.graph())


def test_a_profile_shows_the_streams(branches):
    x = torch.ones(160, 160, device="dtorch") / 160

    def steps(count):
        for _ in range(count):
            total = two_branches(x).sum()
            dt.mark_step()
        assert total.isfinite().item()

    steps(4)
    ready()
    with dt.profile() as profile:
        steps(6)
    names = {event["tid"]: event["args"]["name"] for event in profile.events()
             if event["name"] == "thread_name" and event["pid"] == 2}
    rows = {names[event["tid"]] for event in profile.events()
            if event.get("cat") == "operator" and event["pid"] == 2}
    assert rows == {"operators", "stream 1"}


def test_a_chain_stays_on_one_stream(branches):
    def chain(x):
        for _ in range(8):
            x = torch.tanh(x @ x)
        return x

    torch.testing.assert_close(repeated(chain, "dtorch"), repeated(chain, "cpu"))
    assert not any(map(streams_of, dt.debug.graph()))


def test_small_operators_stay_on_one_stream(branches):
    def small(x):
        return two_branches(x[:4, :4])

    torch.testing.assert_close(repeated(small, "dtorch"), repeated(small, "cpu"))
    assert not any(map(streams_of, dt.debug.graph()))


def test_without_the_policy():
    dt.shutdown()
    repeated(two_branches, "dtorch")
    assert not any(map(streams_of, dt.debug.graph()))
    dt.config.streams = "branches"
    x = torch.ones(150, 150, device="dtorch") / 150
    for _ in range(TIMES):
        total = two_branches(x, 5).sum()
        dt.mark_step()
        ready()
    assert total.item() == pytest.approx(two_branches(torch.ones(150, 150) / 150, 5).sum().item())
    assert any(map(streams_of, dt.debug.graph()))
    with pytest.raises(ValueError, match="expected one, communication or branches"):
        dt.config.streams = "many"
    with pytest.raises(RuntimeError, match="can't change while the workers run"):
        dt.config.streams = "one"
    dt.shutdown()
    dt.config.streams = "communication"


def test_a_graph_with_a_policy_of_its_own():
    dt.shutdown()
    dt.init()
    graph = dt.Graph(streams="branches", passes="none")
    with graph:
        found = repeated(two_branches, "dtorch")
        assert any(map(streams_of, dt.debug.graph()))
    torch.testing.assert_close(found, repeated(two_branches, "cpu"))
    assert not any(map(streams_of, dt.debug.graph()))
    dt.shutdown()


@pytest.fixture
def eager_to_divide(monkeypatch):
    """Divides whatever can be."""
    monkeypatch.setattr(assignment, "_LEAST", 0)
    monkeypatch.setattr(assignment, "_GAIN", 1e9)
    monkeypatch.setattr(assignment, "_WAIT", 0)
    monkeypatch.setattr(assignment.os, "cpu_count", lambda: 3)


def test_a_failure_in_a_branch(branches, eager_to_divide):
    def program(a, b):
        x = torch.tanh(a) + 1
        y = torch.linalg.inv(b)  # may fail
        z = y @ a
        return x * 2, z

    good = torch.eye(4)
    for step in range(TIMES + 2):
        bad = step == TIMES
        a, b = torch.full((4, 4), 0.5 + step), torch.zeros(4, 4) if bad else good * (step + 1)
        x, z = program(a.to("dtorch"), b.to("dtorch"))
        torch.testing.assert_close(x.cpu(), torch.tanh(a) * 2 + 2)
        if bad:
            with pytest.raises(dt.WorkerError, match="singular") as caught:
                z.cpu()
            assert "in program" in caught.value.site or "test_a_failure" in caught.value.site
        else:
            torch.testing.assert_close(z.cpu(), torch.linalg.inv(b) @ a)
        dt.mark_step()
        ready()


def test_writes_in_place_keep_their_order(branches, eager_to_divide):
    def program(x):
        a, b = x.clone(), x * 2
        views = [a[i] for i in range(4)]
        for i in range(4):
            views[i].add_(b[i])
            b = b + a.sum()
            a.mul_(1.5)
        total = views[0] + views[3]
        del views
        return total * b[0]

    torch.testing.assert_close(repeated(program, "dtorch"), repeated(program, "cpu"),
                               rtol=1e-4, atol=1e-4)
    assert any("waits for" in streams_of(window) for window in dt.debug.graph())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shape", [(1,), (2,), (2, 2)])
def test_random_programs_on_streams(eager_to_divide, shape):
    dt.shutdown()
    dt.init(workers=torch.Size(shape).numel(), streams="branches")
    mesh = dt.init_device_mesh(shape)
    found = hunt(mesh, seed=23, examples=20, times=5)
    assert found is None, f"{text(found[0], mesh)}\n{found[1]}"
    dt.shutdown()
