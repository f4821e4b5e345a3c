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


@pytest.mark.parametrize("mine, workers, masks, expected", [
    ({0, 1, 2, 3}, 2, None, 2),
    ({0}, 4, None, 1),
    ({0, 1, 2, 3}, 2, [{0, 1, 2, 3}, {4, 5, 6, 7}], 4),
    ({0, 1, 2, 3}, 2, [{0, 1, 2, 3}, {0, 1, 2, 3}], 2),
])
def test_cpu_threads(mine, workers, masks, expected, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: mine)
    assert placement.cpu_threads(workers, masks) == expected


def test_omp_num_threads_decides(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7,2")
    assert placement.cpu_threads(100) == 7
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(ValueError, match="OMP_NUM_THREADS='many'"):
        placement.cpu_threads(1)
