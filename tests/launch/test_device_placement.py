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
