"""torch.dtorch and torch.accelerator."""

import gc
import os

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi.runtime import runtime

# By how much PyTorch's allocator for real GPUs may round a tensor's memory up.
ON_REAL_GPU = os.environ["DTORCH_DEVICE"] == "gpu" and "SIMULATED_GPUS" not in os.environ
ROUNDING = 1 << 20 if ON_REAL_GPU else 0


def test_names():
    assert torch.device("dtorch").type == "dtorch"
    assert torch._C._get_privateuse1_backend_name() == "dtorch"
    assert torch.get_device_module("dtorch") is torch.dtorch
    assert "workers" in torch.dtorch.get_device_name()


def test_one_device():
    assert torch.dtorch.is_available() and torch.dtorch.is_initialized()
    assert torch.dtorch.device_count() == 1
    assert torch.dtorch.current_device() == 0
    torch.dtorch.set_device(0)
    torch.dtorch.set_device("dtorch:0")
    with torch.dtorch.device(0):
        assert torch.ones(1, device="dtorch").device.index == 0
    with pytest.raises(ValueError, match="one device"):
        torch.dtorch.set_device(1)


def test_synchronize_waits():
    x = torch.ones(200, 200, device="dtorch")
    torch.dtorch.synchronize()
    workers = runtime().hosted_workers
    issued, executed = dt.debug.counters()["operators"], [w.num_operators for w in workers]
    for _ in range(50):
        x = x @ x * 0.005
    issued = dt.debug.counters()["operators"] - issued
    torch.dtorch.synchronize()
    assert issued == 100
    assert [w.num_operators for w in workers] == [n + issued for n in executed]


def test_memory():
    gc.collect()
    before = torch.dtorch.memory_allocated()
    x = torch.ones(1000, 1000, device="dtorch")
    assert 0 <= torch.dtorch.memory_allocated() - before - 4_000_000 <= ROUNDING
    del x
    assert torch.dtorch.memory_allocated() == before
    assert torch.dtorch.max_memory_allocated() >= 4_000_000
    torch.dtorch.empty_cache()


def test_memory_by_the_names_of_other_devices():
    x = torch.ones(1000, 1000, device="dtorch")
    stats = torch.dtorch.memory_stats()
    for now, peak, name in [
        (torch.dtorch.memory_allocated, torch.dtorch.max_memory_allocated, "allocated"),
        (torch.dtorch.memory_reserved, torch.dtorch.max_memory_reserved, "reserved"),
    ]:
        assert now() == stats[f"{name}_bytes.all.current"] >= 4_000_000
        assert peak() >= stats[f"{name}_bytes.all.peak"] >= now()
    head, *lines = torch.dtorch.memory_summary().splitlines()
    assert head.split() == ["worker", "tensors", "held", "allocated", "active", "reserved",
                            "retries", "failures"]  # fmt: skip
    assert len(lines) == dt.num_workers() and lines[0].split()[0] == "0"
    del x


def test_generator_functions():
    torch.dtorch.manual_seed(12)
    assert torch.dtorch.initial_seed() == 12
    state = torch.dtorch.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    first = torch.rand(2, device="dtorch").tolist()
    torch.dtorch.set_rng_state(state)
    assert torch.rand(2, device="dtorch").tolist() == first
    with pytest.raises(RuntimeError, match="16 contiguous uint8"):
        torch.dtorch.set_rng_state(torch.zeros(3, dtype=torch.uint8))
    torch.manual_seed(12)
    assert torch.dtorch.initial_seed() == 12


def test_streams_and_events():
    stream = torch.dtorch.current_stream()
    event = torch.Event("dtorch")
    x = torch.ones(3, device="dtorch") + 1
    event.record(stream)
    event.synchronize()
    assert event.query()
    stream.synchronize()
    with stream:
        y = x + 1
    assert y.tolist() == [3, 3, 3]
    stream.wait_event(event)
    x.record_stream(stream)


def test_accelerator():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator().type == "dtorch"
    assert torch.accelerator.device_count() == 1
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()
    assert torch.accelerator.current_stream().device.type == "dtorch"
    x = torch.ones(100, 100, device=torch.accelerator.current_accelerator())
    assert x.device.type == "dtorch"


def test_accelerator_memory():
    before = torch.accelerator.memory_allocated()
    x = torch.ones(100, 100, device="dtorch")
    assert 0 <= torch.accelerator.memory_allocated() - before - 40_000 <= ROUNDING
    assert torch.accelerator.max_memory_allocated() >= 40_000
    assert torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated()
    torch.accelerator.empty_cache()
    del x


@pytest.mark.parametrize("module", [torch.accelerator, torch.dtorch], ids=["accelerator", "device"])
def test_reset_of_the_peak(module):
    # Tests before this one may have raised the peak by more than this one allocates.
    module.reset_peak_memory_stats()
    before = module.max_memory_allocated()
    x = torch.ones(200 << 20, dtype=torch.uint8, device="dtorch")
    assert module.max_memory_allocated() > before
    peak = module.max_memory_allocated()
    del x
    module.reset_peak_memory_stats()
    assert module.max_memory_allocated() < peak - (100 << 20)


def test_capabilities():
    assert torch.dtorch.is_bf16_supported()
    assert torch.bfloat16 in torch.dtorch.get_amp_supported_dtype()


def test_a_device_of_another_number_of_workers(several_workers):
    assert dt.num_workers() == several_workers
    assert torch.dtorch.device_count() == 1
    x = torch.arange(3.0, device="dtorch")
    torch.dtorch.synchronize()
    assert x.tolist() == [0, 1, 2]


def test_tensors_of_a_runtime_that_was_shut_down():
    x = torch.ones(2, device="dtorch")
    dt.shutdown()
    try:
        y = torch.ones(2, device="dtorch")
        with pytest.raises(RuntimeError, match="shut down"):
            x + 1
        with pytest.raises(RuntimeError, match="shut down"):
            x.cpu()
        assert (y + 1).tolist() == [2, 2]
        del x
        assert (y + 2).tolist() == [3, 3]
    finally:
        dt.shutdown()


def test_many_tensors_that_outlive_their_workers():
    dt.shutdown()
    dt.init(workers=2)
    first = [torch.zeros(1, device="dtorch") for _ in range(70_000)]
    dt.shutdown()
    dt.init(workers=2)
    try:
        second = [torch.full((1,), float(i), device="dtorch") for i in range(3)]
        del first
        second += [torch.full((1,), float(i), device="dtorch") for i in range(3, 6)]
        assert torch.cat(second).tolist() == [0, 1, 2, 3, 4, 5]
    finally:
        dt.shutdown()
