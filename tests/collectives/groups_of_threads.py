"""Groups of worker threads on two simulated GPUs and a CPU, each tried with a sum."""

from concurrent.futures import ThreadPoolExecutor

import simulated_gpu
import torch

from dtorch_mpi._collectives import ThreadGroups, make_group
from dtorch_mpi.device_groups import DeviceGroups
from dtorch_mpi.launch.placement import worker_device

from .calls import allreduce

simulated_gpu.load(devices=2)
DEVICES = [torch.device(name) for name in ("cuda:0", "cuda:1", "cuda:0", "cpu")]
inner = ThreadGroups()
groups = DeviceGroups([worker_device(device) for device in DEVICES], inner.maker(), None,
                      inner.abort)
maker = groups.maker()


def member(worker, workers):
    rank = workers.index(worker)
    backend = make_group(maker, workers, rank)
    assert backend is make_group(maker, workers, rank), "made twice"
    tensor = torch.full((3,), 1.0 + worker, device=DEVICES[worker])
    allreduce(backend, [tensor]).wait()
    return backend.name(), tensor.cpu().tolist()


with ThreadPoolExecutor(4) as pool:
    for workers in [0, 1], [2, 0], [0, 3], [0, 1, 2, 3]:
        for name, total in pool.map(member, workers, [workers] * len(workers)):
            print(workers, name, total)
groups.abort("the test ends")
try:
    allreduce(make_group(maker, [0, 1], 0), [torch.ones(1, device="cuda:0")])
except torch.distributed.DistBackendError as error:
    print(error)
assert not simulated_gpu.violations(), simulated_gpu.violations()
