"""Tests of other folders, and of the simulated GPUs themselves, in a process that has some.

PyTorch finds simulated GPUs until a process ends, so they have one of their own. All of the
folders: SIMULATED_GPUS=2 scripts/test.sh -m gpu
"""

import os

import pytest
import torch
from launching import run_tests

pytestmark = [
    pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch has real ones"),
    pytest.mark.skipif("SIMULATED_GPUS" in os.environ, reason="this is such a process"),
]


ON_GPUS = {"SIMULATED_GPUS": "2", "DTORCH_DEVICE": "gpu"}
FOLDERS = {
    "simulation": ["tests/simulated_gpu"],
    "workers": ["tests/gpu/test_device_streams.py", "tests/gpu/test_device_graphs.py",
                "tests/gpu/test_device_graph_parts.py", "tests/gpu/test_device_memory.py",
                "tests/gpu/test_failing_collectives.py", "tests/passes/test_streams.py",
                "tests/passes/test_early_collectives.py::"
                "test_gradients_are_reduced_together_and_early"],
    "triton": ["tests/gpu/test_triton_operators.py", "tests/gpu/test_triton_fusion.py"],
    "others": ["tests/futures/test_values.py", "tests/graphs/test_graphs.py",
               "tests/device/test_moving.py", "tests/device/test_autocast.py",
               "tests/random/test_generator.py", "tests/sharding/test_redistribute.py"],
    "more of triton": ["-m", "sweep", "tests/gpu/test_triton_fusion.py"],
    "more": ["tests/device", "tests/random", "tests/kernels", "tests/meshes/test_to_mesh.py",
             "tests/graphs/test_lives_of_graphs.py", "tests/graphs/test_memory_between_graphs.py"],
}  # fmt: skip


@pytest.mark.timeout(1000)  # the first may compile the simulation
@pytest.mark.parametrize("part", [
    "simulation", "workers", "triton", "others",
    *(pytest.param(part, marks=pytest.mark.sweep) for part in ("more of triton", "more"))])
def test_on_simulated_gpus(part):
    run_tests(*FOLDERS[part], limit=900, settings=ON_GPUS)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("home", ["shared", "network"])
def test_a_job_on_simulated_gpus(home):
    run_tests("tests/futures/test_values.py", launcher="mpirun", workers=2, home=home, limit=180,
              settings=ON_GPUS)
