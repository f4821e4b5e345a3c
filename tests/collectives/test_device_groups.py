"""Which groups workers on GPUs get, and how they find each other. NCCL's are in test_nccl.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dtorch_mpi._collectives import ThreadGroups, group_maker, make_group
from dtorch_mpi.device_groups import any_nccl, host_memory_line, interface_addresses, nccl_serves
from dtorch_mpi.launch.placement import WorkerDevice

ROOT = Path(__file__).parents[len(__package__.split("."))]
CPU = WorkerDevice("cpu", "n1", "n1 cpu", False)
GPUS = [WorkerDevice(f"cuda:{index}", "n1", f"GPU-{index}", True) for index in range(2)]
# The same GPU, by the name it has for a process that sees this one only.
SAME = WorkerDevice("cuda:0", "n1", "GPU-1", True)
OTHER_KIND = WorkerDevice("xpu:0", "n1", "n1 xpu:0", True)


def test_nccl_takes_workers_with_a_gpu_each():
    assert nccl_serves(GPUS) is any_nccl(GPUS) is dist.is_nccl_available()
    for members in [*GPUS, SAME], [GPUS[0], CPU], [CPU], [OTHER_KIND]:
        assert not nccl_serves(members)


def test_line_of_those_who_share():
    assert host_memory_line([CPU, CPU]) is host_memory_line([GPUS[0], CPU]) is None
    line = host_memory_line([*GPUS, SAME])
    if dist.is_nccl_available():
        assert line.startswith("workers 1, 2 share cuda:1 of host n1: NCCL takes no two workers")
        assert host_memory_line(GPUS) is None
    else:
        assert line.startswith("this PyTorch has no NCCL")


def test_a_maker_in_python():
    """It is called without the GIL, and says what went wrong."""
    inner = ThreadGroups().maker()

    def make(workers, rank):
        if rank > 0:
            raise ValueError(f"no rank {rank} among {workers}")
        return make_group(inner, workers, rank)

    maker = group_maker(make)
    assert make_group(maker, [4, 7], 0).size() == 2
    with pytest.raises(RuntimeError, match=r"ValueError: no rank 1 among \[4, 7\]"):
        make_group(maker, [4, 7], 1)


@pytest.mark.skipif(torch.version.cuda is not None or torch.version.hip is not None,
                    reason="simulated GPUs need a build of torch for CPUs")
@pytest.mark.timeout(400)  # the first builds the simulated GPU
def test_groups_of_threads():
    paths = [str(ROOT), str(Path(sys.modules["dtorch_mpi"].__path__[0]).parent)]
    ended = subprocess.run(
        [sys.executable, "-m", f"{__package__}.groups_of_threads"], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, timeout=380)
    assert ended.returncode == 0, ended.stderr
    staged, threads = "dtorch-host-staged", "dtorch-threads"
    assert ended.stdout.splitlines() == [
        *[f"[0, 1] {staged} [3.0, 3.0, 3.0]"] * 2,
        *[f"[2, 0] {staged} [4.0, 4.0, 4.0]"] * 2,
        f"[0, 3] {staged} [5.0, 5.0, 5.0]", f"[0, 3] {threads} [5.0, 5.0, 5.0]",
        *[f"[0, 1, 2, 3] {staged} [10.0, 10.0, 10.0]"] * 3,
        f"[0, 1, 2, 3] {threads} [10.0, 10.0, 10.0]",
        f"allreduce ({staged}, rank 0 of 2): the group was aborted: the test ends",
    ]


def test_a_store_by_mpi():
    pytest.importorskip("dtorch_mpi._mpi_collectives", reason="built without MPI")
    from .test_mpi_backend import mpirun

    if not interface_addresses():
        pytest.skip("this host has no network")
    done = mpirun(3, "-m", f"{__package__}.sharing_store", seconds=60)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("['word 0', 'word 1', 'word 2']") == 3, done.stdout
