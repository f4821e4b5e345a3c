"""Memory figures of workers on GPUs: those of PyTorch's allocator for the GPU."""

import gc
import os

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi.kernels import call, kernel

pytestmark = pytest.mark.skipif("SIMULATED_GPUS" not in os.environ,
                                reason="real allocators round sizes up")
if "SIMULATED_GPUS" in os.environ:
    import simulated_gpu

MIB = 1 << 20
SMALL = 4096  # what the questions themselves take meanwhile
aside = []


@kernel("tests.put_aside")
def _put_aside(context, nbytes):
    aside.append(torch.empty(nbytes, dtype=torch.uint8, device="cuda"))
    return torch.zeros(1)


@pytest.fixture
def mesh():
    dt.shutdown()
    gc.collect()  # what other tests have left in cycles would be freed in the midst of one
    dt.init(workers=2)
    yield dt.init_device_mesh((2,))
    aside.clear()
    dt.shutdown()


def floats(nbytes, mesh, placement):
    return dt.zeros(nbytes // 4, mesh=mesh, placements=[placement])


def test_what_each_worker_has_on_its_gpu(mesh):
    before = torch.dtorch.worker_memory()
    x = floats(8 * MIB, mesh, dt.Shard(0))
    after = torch.dtorch.worker_memory()
    for device, (early, late) in enumerate(zip(before, after, strict=True)):
        assert late["bytes"] - early["bytes"] == 4 * MIB
        assert late["allocated"] - early["allocated"] == 4 * MIB
        assert late["reserved"] - early["reserved"] == 4 * MIB
        assert 0 <= simulated_gpu.live_bytes(device) - late["allocated"] < SMALL
    del x
    assert torch.dtorch.worker_memory()[0]["allocated"] == before[0]["allocated"]


def test_memory_that_no_tensor_of_the_program_has(mesh):
    torch.dtorch.reset_peak_memory_stats()
    before = torch.dtorch.worker_memory()[0]
    call("tests.put_aside", [3 * MIB], sizes=[1], dtype=torch.float32)
    found = torch.dtorch.worker_memory()[0]
    assert found["bytes"] - before["bytes"] < SMALL
    assert 3 * MIB <= found["allocated"] - before["allocated"] < 3 * MIB + SMALL
    assert torch.dtorch.memory_allocated() >= 3 * MIB
    assert torch.dtorch.max_memory_allocated() >= 3 * MIB


def test_peaks(mesh):
    x = floats(4 * MIB, mesh, dt.Replicate())
    dt.sync()
    torch.dtorch.reset_peak_memory_stats()
    held = torch.dtorch.memory_allocated()
    assert 0 <= torch.dtorch.max_memory_allocated() - held < SMALL
    (x + 1) * 2
    assert 8 * MIB <= torch.dtorch.max_memory_allocated() - held < 8 * MIB + SMALL
    assert torch.dtorch.max_memory_reserved() == torch.dtorch.max_memory_allocated()
    assert torch.dtorch.memory_allocated() == torch.dtorch.memory_reserved() == held
    peaks = [figures["peak_allocated"] for figures in torch.dtorch.worker_memory()]
    assert [worker["peak_memory"] for worker in dt.stats()["workers"]] == peaks
    torch.dtorch.reset_peak_memory_stats()
    assert torch.dtorch.max_memory_allocated() - held < SMALL


def test_the_most_of_all_workers(mesh):
    first = dt.init_device_mesh((2,), mesh_dim_names=("axis",))["axis", 0]
    before = torch.dtorch.memory_allocated()
    x = dt.distribute_tensor(torch.zeros(6 * MIB // 4), first)
    assert torch.dtorch.memory_allocated() - before == 6 * MIB
    mine, other = torch.dtorch.worker_memory()
    assert mine["allocated"] - other["allocated"] >= 6 * MIB
    del x


def test_several_graphs_count_once(mesh):
    before = torch.dtorch.worker_memory()[0]
    with dt.Graph() as graph:
        x = floats(2 * MIB, mesh, dt.Replicate())
        y = x + 1
    z = y * 2
    found = torch.dtorch.worker_memory()[0]
    assert found["bytes"] - before["bytes"] == 6 * MIB
    assert 6 * MIB <= found["allocated"] - before["allocated"] < 6 * MIB + SMALL
    del x, y, z
    graph.close()


@pytest.mark.parametrize("module", [torch.accelerator, torch.dtorch], ids=["accelerator", "device"])
def test_caches_are_emptied_on_each_worker(mesh, module):
    dt.sync()
    simulated_gpu.reset()
    module.empty_cache()
    dt.sync()
    assert simulated_gpu.counts()["emptied_caches"] == 2


def test_as_pytorch_names_them(mesh):
    x = floats(5 * MIB, mesh, dt.Replicate())
    dt.sync()
    found = torch.dtorch.memory_stats()
    theirs = torch.accelerator.memory_stats()
    assert {name: theirs[name] for name in found} == found
    assert found["active_bytes.all.current"] >= 5 * MIB and found["num_ooms"] == 0
    lines = torch.dtorch.memory_summary().splitlines()
    assert len(lines) == 3 and lines[1].split()[0] == "0" and "5 MiB" in lines[2]
    del x
