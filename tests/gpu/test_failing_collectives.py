"""Collectives that fail on the device, as NCCL's do: where nobody waits for them."""

import contextlib
import os

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi import Replicate, Shard
from dtorch_mpi.device_groups import DeviceGroups

pytestmark = pytest.mark.skipif("SIMULATED_GPUS" not in os.environ,
                                reason="NCCL does not fail when it is told to")
if "SIMULATED_GPUS" in os.environ:
    import simulated_gpu

FOR_EVER = 10**9
TEXTS = {"error": "NCCL reports an error", "timeout": "did not end within the time",
         "group": "did not end within the time"}  # fmt: skip


@pytest.fixture
def groups(monkeypatch):
    """How the groups of these workers fail, by the workers; () is all others."""
    how = {(): "error"}

    def group(groups, workers, rank):
        return simulated_gpu.failing_group(
            rank, len(workers), how.get(tuple(workers), how[()]))

    monkeypatch.setattr(DeviceGroups, "group", group)
    dt.shutdown()
    yield how
    simulated_gpu.set_event_delay(2)
    simulated_gpu.fail_collectives_from(0)
    dt.shutdown()


def square():
    """Four workers, as a mesh of 2x2."""
    dt.init(workers=4)
    return dt.init_device_mesh((2, 2), mesh_dim_names=("pp", "dp"))


def reduced(mesh):
    x = dt.distribute_tensor(torch.ones(4, 4), mesh, [Replicate(), Shard(0)])
    return x.sum(0).redistribute(mesh, [Replicate(), Replicate()])


def reduced_and_scattered(mesh):
    x = dt.distribute_tensor(torch.ones(4, 4), mesh, [Replicate(), Shard(0)])
    return x.sum(0).redistribute(mesh, [Replicate(), Shard(0)])


def gathered(mesh):
    x = dt.distribute_tensor(torch.ones(4, 4), mesh, [Replicate(), Shard(0)])
    return x.redistribute(mesh, [Replicate(), Replicate()])


def cut_otherwise(mesh):
    x = dt.distribute_tensor(torch.ones(4, 4), mesh, [Replicate(), Shard(0)])
    return x.redistribute(mesh, [Replicate(), Shard(1)])


def resharded(mesh):  # src/sharding/reshard.h: gathered meanwhile, it would take twice the memory
    x = dt.distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Shard(1)])
    return x.redistribute(mesh, [Shard(1), Shard(0)])


def moved(mesh):
    x = dt.distribute_tensor(torch.ones(4, 4), mesh["pp", 0], [Shard(0)])
    return x.to_mesh(mesh["pp", 1], [Replicate()])


PROGRAMS = [reduced, reduced_and_scattered, gathered, cut_otherwise, resharded, moved]


def failure_of(value):
    with pytest.raises(dt.WorkerError) as raised:
        value.cpu()
    return str(raised.value)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("how", TEXTS)
def test_one_that_never_ends(groups, how, program):
    groups[()] = how
    mesh = square()
    simulated_gpu.set_event_delay(0 if program is moved else FOR_EVER)  # its heads are waited for
    found = failure_of(program(mesh))
    assert TEXTS[how] in found and "redistribute" in found
    assert "worker" in found and __file__ in found, found


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_from_which_the_device_goes_on(groups, program):
    mesh = square()
    found = failure_of(program(mesh))
    assert TEXTS["error"] in found and "redistribute" in found and __file__ in found


@pytest.mark.parametrize("program", PROGRAMS)
def test_none_fails(groups, program):
    groups[()] = "success"
    mesh = square()
    assert program(mesh).cpu().numel() > 0


def test_the_first_of_two(groups):
    mesh = square()
    groups[()] = "success"
    groups[0, 1] = groups[2, 3] = "timeout"  # of the inner axis, which is gathered first
    x = dt.distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Shard(1)])
    assert TEXTS["timeout"] in failure_of(x.redistribute(mesh, [Replicate(), Replicate()]))


def test_a_worker_that_only_sends(groups):
    groups[()] = "success"
    groups[0, 1] = "error"
    dt.init(workers=2)
    mesh = dt.init_device_mesh((2,), mesh_dim_names=("pp",))
    x = dt.distribute_tensor(torch.ones(4), mesh["pp", 0])
    y = x + 1
    x.to_mesh(mesh["pp", 1])
    assert TEXTS["error"] in failure_of(y)


def test_read_in_another_graph(groups):
    mesh = square()
    simulated_gpu.set_event_delay(FOR_EVER)
    whole = gathered(mesh)
    with dt.Graph() as other:
        found = failure_of(whole + 1)
    assert TEXTS["error"] in found and __file__ in found
    simulated_gpu.set_event_delay(2)
    other.close()


def test_a_sync_tells_of_it_once_and_a_read_each_time(groups):
    mesh = square()
    whole = gathered(mesh)
    with pytest.raises(dt.WorkerError, match=TEXTS["error"]):
        dt.sync()
    dt.sync()
    for _ in range(2):
        assert TEXTS["error"] in failure_of(whole + 1)
    dt.sync()


def test_gradients_that_are_reduced_together(groups):
    size, steps, rewritten, failing = 64, 24, 8, 12
    dt.init(workers=2)
    mesh = dt.init_device_mesh((2,))
    layers = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.Linear(size, size))
    layers = dt.distribute_module(layers.to("dtorch"), mesh, {})
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, foreach=False)
    x = dt.distribute_tensor(torch.randn(4, size), mesh, [Shard(0)])
    groups[()] = "error"
    simulated_gpu.fail_collectives_from(FOR_EVER)
    for step in range(steps):
        if step == rewritten:
            dt.sync()
            dt.runtime.current().main.planner.wait()
        if step == failing:
            simulated_gpu.fail_collectives_from(size * size + 1)  # no gradient alone
        layers(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert any("begin(" in stages["early_collectives"] for stages in dt.debug.graph())
    assert TEXTS["error"] in failure_of(layers[0].weight)
    for _ in range(steps - rewritten):  # one of each step may be left to tell
        with contextlib.suppress(dt.WorkerError):
            dt.sync()
