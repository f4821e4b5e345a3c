"""What mypy must find of the public API's types: scripts/lint.sh checks this file, nobody runs it.

Each `type: ignore` stands where mypy must complain: it reports one that is not needed.
"""

from pathlib import Path
from typing import Any, assert_type

import torch

import dtorch_mpi as dt

dt.init(4, passes="none", threads=2)
dt.init([4])  # type: ignore[arg-type]
mesh = dt.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
dt.init_device_mesh(4)  # type: ignore[arg-type]

assert_type(dt.num_workers(), int)
assert_type(dt.sync(), None)
assert_type(dt.sync_future().get(), None)
dt.sync_future().wait("10")  # type: ignore[arg-type]

dt.zeros(2, 3)
dt.zeros((2, 3), dtype=torch.int64, mesh=mesh, placements=[dt.Shard(0), dt.Replicate()])
dt.zeros("2")  # type: ignore[arg-type]
dt.full((2, 3), 7)
dt.full(2, 3, fill_value=1.5)
dt.randint(5, (2, 3))
dt.randint(0, 5, (2, 3))

rows = dt.data.H5Dataset("corpus.h5", "train")
for _batch in rows.batches(64, mesh=mesh, placements=[dt.Shard(0), dt.Replicate()], seed=0):
    pass
rows.batches(64)  # type: ignore[call-arg]

state: dict[str, Any] = {"step": 0}
assert_type(dt.checkpoint.save("checkpoints", state, keep=3), Path)
assert_type(dt.checkpoint.save_async("checkpoints", state).get(), Path)
assert_type(dt.checkpoint.latest(Path("checkpoints")), Path | None)
dt.checkpoint.save_async("checkpoints", state, busy="no")  # type: ignore[arg-type]

with dt.profile("trace.json") as profile:
    assert_type(profile, dt.Profile)
assert_type(profile.events(), list[dict[str, Any]])

with dt.Graph(traces=False) as graph:
    assert_type(graph, dt.Graph)


@dt.python_kernel("my::scaled(Tensor x, float by) -> Tensor")
def scaled(x, by):
    return x * by


with dt.use_kernels(scaled, "my::other"):
    scaled(torch.ones(2), 2.0)
with dt.use_kernels(1):  # type: ignore[arg-type]
    pass


def rank_of(error: dt.WorkerError) -> None:
    assert_type(error.rank, int | None)


assert_type(dt.debug.counters(), dict[str, int])
