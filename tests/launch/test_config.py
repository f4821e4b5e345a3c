"""dt.config, and settings that change what workers do at a time."""

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi import settings


@pytest.fixture(autouse=True)
def stopped():
    dt.shutdown()
    yield
    dt.shutdown()
    settings.preset.clear()


def test_before_and_while_workers_run(monkeypatch):
    monkeypatch.setenv("DTORCH_WORKERS", "3")
    monkeypatch.setenv("DTORCH_PASSES", "dead_nodes")
    assert (dt.config.workers, dt.config.passes) == (3, "dead_nodes")
    dt.config.workers = 2
    dt.init(passes="none")
    assert dt.num_workers() == dt.config.workers == 2
    assert dt.config.passes == "none"
    dt.config.passes = "memory_reuse"
    assert dt.config.passes == "memory_reuse"
    for _ in range(5):
        x = torch.ones(4, device="dtorch")
        for _ in range(10):
            x = x * 2
        assert x.sum().item() == 4096.0
        dt.runtime.current().main.planner.wait()
    assert list(dt.debug.graph()[0]) == ["program", "memory_reuse"]


def test_what_cannot_be():
    with pytest.raises(AttributeError, match="no setting is named 'pases'"):
        dt.config.pases = "none"
    with pytest.raises(AttributeError, match="expected one of workers"):
        print(dt.config.pases)
    with pytest.raises(ValueError, match="streams is 'three'"):
        dt.config.streams = "three"
    dt.init()
    with pytest.raises(RuntimeError, match="streams can't change while the workers run"):
        dt.config.streams = "one"
    with pytest.raises(ValueError, match="passes names 'pases'"):
        dt.config.passes = "pases"
    assert "workers" in dir(dt.config)


def test_init_again_with_other_settings():
    dt.init(workers=2, passes="none")
    dt.init()
    dt.init(passes="none")
    with pytest.raises(RuntimeError, match="runs already, with passes='none', and 'all' was"):
        dt.init(passes="all")
    with pytest.raises(TypeError, match="got the settings"):
        dt.init(pases="all")


def test_a_tensor_of_workers_that_are_gone_starts_no_others():
    x = torch.ones(2, device="dtorch")
    dt.shutdown()
    for use in (lambda: x.sum(), lambda: torch.cat([x, x]), lambda: x.add_(1)):
        with pytest.raises(RuntimeError, match="shut down"):
            use()
    assert not dt.is_initialized()
    dt.init(workers=2)
    assert dt.num_workers() == 2


@pytest.mark.parametrize(("streams", "is_first"), [("one", True), ("communication", False)])
def test_streams(streams, is_first):
    dt.init(workers=2, streams=streams, collective_delay_us=300_000)
    mesh = dt.init_device_mesh((2,))
    x = dt.distribute_tensor(torch.arange(4.0), mesh, [dt.Shard(0)])
    whole = x.redistribute(mesh, [dt.Replicate()])
    other = (x + 1).to_torch_async()
    future = whole.to_torch_async()
    torch.testing.assert_close(other.get(), torch.arange(4.0) + 1)
    # With one stream the gather had to end before x + 1 could begin.
    if is_first:
        future.wait(200)  # raises TimeoutError
    else:
        assert not future.is_ready()
    torch.testing.assert_close(future.get(), torch.arange(4.0))
