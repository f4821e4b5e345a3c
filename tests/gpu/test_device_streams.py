"""What a worker gives to its GPU's streams, and what reading a value waits for.

In jobs whose workers are on GPUs; on simulated ones each test also fails where two streams use
memory without a wait between (tests/conftest.py).
"""

import os
import threading
import time

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi.kernels import call, kernel

pytestmark = pytest.mark.skipif(os.environ["DTORCH_DEVICE"] != "gpu",
                                reason="workers on CPUs have no streams")
SIMULATED = "SIMULATED_GPUS" in os.environ
on_simulated = pytest.mark.skipif(not SIMULATED,
                                  reason="a real GPU does not tell what it was given")
if SIMULATED:
    import simulated_gpu

LARGE = 20 << 20  # floats: more than a value that is set aside on the GPU while it is read
told = []


@kernel("tests.note_that_it_ran")
def _note(context):
    told.append(threading.current_thread().name)
    return torch.zeros(1, device=context.device)


@pytest.fixture(autouse=True)
def fresh():
    dt.shutdown()
    dt.init()
    yield
    dt.shutdown()


@pytest.mark.parametrize("size", [3, 1 << 18, LARGE])
def test_a_value_is_as_it_was_when_it_was_read(size):
    x = torch.arange(size, dtype=torch.float32)
    y = x.to("dtorch")
    future = y.to_torch_async()
    y.zero_()
    assert torch.equal(future.get(), x)
    assert not y.cpu().any()


@pytest.mark.parametrize("view", [
    lambda x: x.t(), lambda x: x[::2, 1:], lambda x: x[:0], lambda x: x.expand(2, -1, -1),
    lambda x: x[1, 2]])
def test_views(view):
    x = torch.randn(6, 5)
    assert torch.equal(view(x.to("dtorch")).cpu(), view(x))


@pytest.mark.parametrize("value", [torch.randn(4, dtype=torch.complex64).conj(),
                                   torch.randn(4, dtype=torch.complex64).conj().imag])
def test_lazy_bits(value):
    assert torch.equal(value.to("dtorch").cpu(), value)


def test_a_large_upload_of_another_memory_order():
    x = torch.randn(1 << 12, 1 << 11).t()
    assert torch.equal((x.to("dtorch") + 1).cpu(), x + 1)


@on_simulated
def test_reading_waits_for_no_device():
    x = torch.randn(64, 64).to("dtorch")
    simulated_gpu.reset()
    for _ in range(3):
        x = x @ x.t() / 64
        x.sum().item()
        x.cpu()
    dt.sync()
    counts = simulated_gpu.counts()
    assert counts["device_synchronizations"] == 0
    assert counts["stream_synchronizations"] == {}
    assert counts["blocking_copies"] == 0


@on_simulated
def test_a_value_on_its_way_holds_nothing_up():
    x = torch.ones(4).to("dtorch")
    dt.sync()
    told.clear()
    simulated_gpu.set_event_delay(500)
    try:
        future = (x + 1).to_torch_async()
        call("tests.note_that_it_ran", [], sizes=[1], dtype=torch.float32)
        dt.runtime.current().flush()
        until = time.monotonic() + 20
        while not told and time.monotonic() < until:
            time.sleep(0.001)
        assert told == ["dtorch-worker-0"] and not future.is_ready()
        assert torch.equal(future.get(), torch.full((4,), 2.0))
    finally:
        simulated_gpu.set_event_delay(2)


@on_simulated
def test_copies_have_streams_of_their_own():
    x = torch.randn(1 << 18)
    dt.sync()
    simulated_gpu.reset()
    assert torch.equal((x.to("dtorch") * 2).cpu(), x * 2)
    counts = simulated_gpu.counts()
    assert len(counts["operators"]) == 3 and "cuda:0 stream 0" in counts["operators"], counts
    assert counts["recorded_streams"] == 2  # the upload for compute, the value for reading


def test_memory_that_is_freed_while_it_is_read():
    x = torch.randn(1 << 18)
    futures = [(x.to("dtorch") + i).to_torch_async() for i in range(8)]
    for i, future in enumerate(futures):
        assert torch.equal(future.get(), x + i)


def branches(x, length=6):
    a, b, c = x, x + 1, x - 1
    for _ in range(length):
        a, b, c = torch.tanh(a @ x), torch.sin(b @ x), torch.cos(c @ x)
    return a - b * c


def test_branches_of_a_plan():
    dt.shutdown()
    dt.init(streams="branches")
    x = torch.randn(256, 256) / 16
    expected = branches(x)
    y = x.to("dtorch")
    for _ in range(6):
        made = branches(y)
        torch.testing.assert_close(made.cpu(), expected, rtol=1e-3, atol=1e-3)
        dt.sync()
        dt.runtime.current().main.planner.wait()
    if SIMULATED:
        simulated_gpu.reset()
        branches(y).cpu()
        busy = [name for name, number in simulated_gpu.counts()["operators"].items() if number > 4]
        assert len(busy) > 1, simulated_gpu.counts()["operators"]


def test_branches_that_fail():
    dt.shutdown()
    dt.init(streams="branches")
    x = (torch.randn(256, 256) / 16).to("dtorch")
    bad = torch.zeros(256, 256, device="dtorch")
    for _ in range(6):
        made = branches(x)
        with pytest.raises(dt.WorkerError, match="singular"):
            torch.linalg.inv(bad).cpu()
        assert made.cpu().isfinite().all()
        dt.sync()


def test_tensors_that_graphs_share():
    x = torch.zeros(1 << 12).to("dtorch")
    with dt.Graph() as other:
        mine = torch.ones(1 << 12, device="dtorch")
    for _ in range(20):
        x.add_(1)
        with other:
            mine = mine + x
        x.mul_(1)
        y = mine * 2
    expected = 1 + sum(range(1, 21))
    assert torch.equal(y.cpu(), torch.full((1 << 12,), 2.0 * expected))
    other.close()
