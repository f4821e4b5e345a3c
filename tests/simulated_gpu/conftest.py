"""Two simulated GPUs, for tests of PyTorch built without CUDA."""

import os

import pytest

import simulated_gpu

os.environ.pop("SIMULATED_GPU_REPORT", None)  # violations are what these tests are about


def pytest_ignore_collect(collection_path):
    """PyTorch finds these GPUs until the process ends: tests/gpu starts one for them."""
    return True if "SIMULATED_GPUS" not in os.environ and "test_" in collection_path.name else None


@pytest.fixture(scope="session")
def gpus():
    """The loaded simulation, of two GPUs."""
    return simulated_gpu.load(devices=2)


@pytest.fixture
def gpu(gpus):
    """The simulation, with nothing counted and no violation found."""
    gpus.reset()
    yield gpus
    gpus.set_event_delay(2)
    gpus.set_host_order("thread")
    gpus.reset()
