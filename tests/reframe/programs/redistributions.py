"""A job: every change of placements on a line of workers is exact; then how fast collectives are.

Values are small integers, so that sums are exact in any order.
"""

import itertools
import sys
import time
from pathlib import Path

import torch

import dtorch_mpi as dt
from dtorch_mpi import Partial, Replicate, Shard

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

from figures import finish, report  # noqa: E402

LAYOUTS = [Replicate(), Shard(0), Shard(1), Partial()]
SIZES = [(8, 4), (5, 3), (1, 7), (0, 3)]
COLLECTIVES = [
    ("all_gather", Shard(0), Replicate()), ("all_reduce", Partial(), Replicate()),
    ("reduce_scatter", Partial(), Shard(0)), ("all_to_all", Shard(0), Shard(1)),
]  # fmt: skip
ELEMENTS, TIMES = 1024, 5  # along each of two dims; float32


def partial_sums(mesh, full):
    """A tensor that is `full` as partial sums: the gradient of what is replicated, as it comes.

    Each worker has the product of its own rows.
    """
    rows = torch.eye(full.shape[0], dtype=full.dtype)
    by_column = dt.distribute_tensor(rows, mesh, [Shard(1)])
    return by_column @ dt.distribute_tensor(full, mesh, [Shard(0)])


def placed(mesh, full, placement):
    if placement.is_partial():
        made = partial_sums(mesh, full)
        assert made.placements == (Partial(),), f"a product of parts is {made.placements}"
        return made
    return dt.distribute_tensor(full, mesh, [placement])


def check_part(full, part, placement, worker, workers):
    if isinstance(placement, Shard):
        pieces = list(torch.chunk(full, workers, placement.dim))
        empty = full.narrow(placement.dim, 0, 0)
        full = (pieces + [empty] * (workers - len(pieces)))[worker]
    assert torch.equal(part, full), f"worker {worker} of {workers}, {placement}: {part} {full}"


def main():
    dt.init()
    workers = dt.num_workers()
    mesh = dt.init_device_mesh((workers,))
    for sizes, (before, after) in itertools.product(SIZES, itertools.product(LAYOUTS, repeat=2)):
        if sizes[0] == 0 and before.is_partial():
            continue  # PyTorch has no product of empty parts to compare with
        for dtype in (torch.float32, torch.float64):
            full = torch.arange(1, 1 + torch.Size(sizes).numel(), dtype=dtype).view(sizes)
            moved = placed(mesh, full, before).redistribute(mesh, [after])
            assert torch.equal(moved.to_torch(), full), f"{before} to {after}: {moved.to_torch()}"
            if not after.is_partial():
                for worker, part in enumerate(dt.local_shards(moved)):
                    check_part(full, part, after, worker, workers)
    for name, before, after in COLLECTIVES:
        tensor = placed(mesh, torch.ones(ELEMENTS, ELEMENTS), before)
        best = float("inf")
        for _ in range(TIMES):
            dt.sync()
            began = time.perf_counter()
            tensor.redistribute(mesh, [after])
            dt.sync()
            best = min(best, time.perf_counter() - began)
        report(f"{name}.{workers}", ELEMENTS * ELEMENTS * 4 / best / 1e9, "GB/s")
    print(f"all redistributions are exact, {workers} workers")
    finish()


main()
