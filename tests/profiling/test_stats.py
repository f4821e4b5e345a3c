"""Numbers of a job: counts that fit each other, times that pass."""

import time

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi.kernels import kernel

WORKER_KEYS = {"operators", "busy", "idle", "peak_memory"}


@kernel("profiling.sleep")
def sleep(context, seconds):
    time.sleep(seconds)
    return torch.zeros(1)


def test_counts():
    a = torch.ones(3, 7, device="dtorch")
    dt.sync()
    before = dt.stats()
    for _ in range(6):
        x = a
        for _ in range(10):
            x = x.cos() + 0.5
        x.to_torch()
    after = dt.stats()
    growth = {name: after[name] - before[name] for name in before if name != "workers"}
    assert growth["operators"] >= 120
    assert growth["records"] >= 2 * growth["operators"] - 20  # each output is freed
    assert 2 <= growth["misses"] <= 10
    assert growth["replays"] >= 1 and growth["replayed_records"] > 0
    assert growth["windows"] >= growth["replays"] and growth["plans"] >= 1
    assert growth["batches"] >= 6 and growth["bytes_sent"] > 0
    assert growth["controller_busy"] > 0
    assert len(after["workers"]) == 1 and set(after["workers"][0]) == WORKER_KEYS
    ran = after["workers"][0]["operators"] - before["workers"][0]["operators"]
    assert ran >= 120


def test_times_of_a_worker():
    dt.sync()
    before, began = dt.stats()["workers"][0], time.monotonic()
    dt.kernels.call("profiling.sleep", [0.2], sizes=[1], dtype=torch.float32)
    dt.sync()
    time.sleep(0.3)
    after, passed = dt.stats()["workers"][0], time.monotonic() - began
    busy, idle = after["busy"] - before["busy"], after["idle"] - before["idle"]
    assert busy >= 0.19 and idle >= 0.25
    assert busy + idle == pytest.approx(passed, abs=0.1)


def test_peak_memory():
    torch.ones(1 << 22, device="dtorch")
    assert dt.stats()["workers"][0]["peak_memory"] > 1 << 24


def test_without_workers():
    dt.shutdown()
    assert dt.stats()["workers"] == [] and not dt.is_initialized()


def test_each_key_is_documented():
    numbers = dt.stats()
    for name in [*numbers, *numbers["workers"][0]]:
        assert f"{name}:" in dt.stats.__doc__ or f'"{name}"' in dt.stats.__doc__, name
