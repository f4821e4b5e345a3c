import os

import pytest
import torch

from dtorch_mpi.launch import placement


@pytest.mark.parametrize("gpus, index, device", [
    (0, 3, "cpu"), (1, 3, "cuda:0"), (4, 3, "cuda:3"), (4, 5, "cuda:1")])
def test_device_for(gpus, index, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert placement.device_for(index) == torch.device(device)


@pytest.mark.parametrize("ranks, gpus, expected", [
    (4, 4, True), (5, 4, False), (3, 4, False), (1, 0, False), (0, 0, False)])
def test_cohost_default(ranks, gpus, expected):
    assert placement.cohost_default(ranks, gpus) is expected


FOUR, EIGHT = frozenset(range(4)), frozenset(range(8))


@pytest.mark.parametrize("mine, workers, controller, expected", [
    (FOUR, [FOUR, FOUR], frozenset(), 2),
    ({0}, [{0}] * 4, frozenset(), 1),
    (FOUR, [FOUR, {4, 5, 6, 7}], frozenset(), 4),  # CPUs of its own
    # A core for the controller where that costs no worker more than a quarter of its threads.
    (FOUR, [FOUR], FOUR, 3),
    (FOUR, [FOUR], {4, 5}, 4),
    (FOUR, [FOUR, FOUR], FOUR, 2),
    (EIGHT, [EIGHT, EIGHT], EIGHT, 3),
    ({0, 1}, [{0, 1}], {0, 1}, 2),
])
def test_threads_from_the_affinity_mask(mine, workers, controller, expected, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: mine)
    threads = placement.worker_threads(0, workers, controller)
    assert threads == (expected, "the affinity mask")


def test_settings_of_threads_decide(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7,2")
    assert placement.worker_threads(0, [FOUR]) == (7, "OMP_NUM_THREADS")
    assert placement.worker_threads(5, [FOUR]) == (5, "DTORCH_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(ValueError, match="OMP_NUM_THREADS='many'"):
        placement.worker_threads(0, [FOUR])


def test_ranges():
    assert placement.ranges({3, 0, 1, 2, 8}) == "0-3,8"
