"""Which device a worker gets. What GPUs do, a process of its own shows with simulated ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dtorch_mpi.launch import placement
from dtorch_mpi.settings import Settings

TESTS = Path(__file__).parents[1]
HAS_GPUS = placement.visible_gpus() > 0
simulated = pytest.mark.skipif(torch.version.cuda is not None or torch.version.hip is not None,
                               reason="simulated GPUs need a build of torch for CPUs")
WITH_GPUS = """
import simulated_gpu
simulated_gpu.load(devices=2)
from dtorch_mpi.launch import placement
print(placement.visible_gpus(), *[placement.device_for(index) for index in range(3)])
print(placement.device_for(0, "gpu"), placement.device_for(0, "cpu"))
found = [placement.worker_device(placement.device_for(index)) for index in (0, 1, 2)]
print(len({worker.identity for worker in found}), all(worker.is_gpu for worker in found))
placement.check_devices("gpu", found)
print(placement.worker_device(placement.device_for(0, "cpu"))[2:])
"""


@simulated
@pytest.mark.timeout(400)  # the first builds the simulated GPU
def test_with_gpus():
    paths = [str(TESTS), str(Path(sys.modules["dtorch_mpi"].__path__[0]).parent)]
    ended = subprocess.run([sys.executable, "-c", WITH_GPUS], capture_output=True, text=True,
                           env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, timeout=380)
    assert ended.returncode == 0, ended.stderr
    several, wanted, identities, cpu = ended.stdout.splitlines()
    assert several == "2 cuda:0 cuda:1 cuda:0"
    assert wanted == "cuda:0 cpu"
    assert identities == "2 True"
    assert cpu.endswith("cpu', True)")


@pytest.mark.skipif(HAS_GPUS, reason="this machine has a GPU")
def test_without_gpus():
    assert placement.device_for(3) == placement.device_for(3, "gpu") == torch.device("cpu")
    worker = placement.worker_device(torch.device("cpu"))
    assert not worker.is_gpu and not worker.sees_gpu
    placement.check_devices("", [worker])
    with pytest.raises(RuntimeError, match="2 of 3 workers see no GPU, first worker 1 on host n1"):
        seen = placement.WorkerDevice("cuda:0", "n1", "GPU-0", True)
        placement.check_devices("gpu", [seen, *[worker._replace(host="n1")] * 2])


def test_setting():
    with pytest.raises(ValueError, match="device is 'cuda': expected cpu or gpu"):
        Settings(device="cuda")


@pytest.mark.parametrize("ranks, gpus, expected", [
    (4, 4, True), (5, 4, False), (3, 4, False), (1, 0, False), (0, 0, False)])
def test_cohost_default(ranks, gpus, expected):
    assert placement.cohost_default(ranks, gpus) is expected
