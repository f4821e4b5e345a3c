"""A job: rank 0 may not map as much memory as the model takes."""

import resource
from pathlib import Path

import torch

import dtorch_mpi as dt
from dtorch_mpi import Shard

ROOM = 1 << 30  # bytes that rank 0 may still map
WIDTH, LAYERS = 8192, 6  # 1.5 GiB of parameters

dt.init()
mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM, resource.RLIM_INFINITY))
try:
    torch.empty(WIDTH * WIDTH * LAYERS)
    raise AssertionError("the limit does not bind: the model would fit into rank 0")
except RuntimeError:
    pass  # as it should be

mesh = dt.init_device_mesh((dt.num_workers(),))
with torch.device("dtorch"):
    model = torch.nn.Sequential(
        *[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    )
dt.distribute_module(model, mesh, {"*": [Shard(0)]})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = model[0].weight.detach()[0, :4].cpu()
model(torch.ones(2, WIDTH, device="dtorch")).sum().backward()
optimizer.step()
changed = (model[0].weight.detach()[0, :4].cpu() - first).abs().max().item()
assert changed > 0
held = [worker["bytes"] for worker in torch.dtorch.worker_memory()]
print("stepped; bytes on each worker:", held, flush=True)
