"""Checks of a job that runs: operators on every worker, and their collectives."""

import contextlib
import os
import threading

from dtorch_mpi.doctor.result import LIMIT, failed, failure, passed


def check(report, workers=None):
    """Add rows for the job to a Report; returns with the workers ended.

    workers: of threads, where there is no launcher. Where a check takes too long its row says so
    and the process ends: the launcher then ends the others.
    """
    import dtorch_mpi as dt

    mesh = None
    with _within(report, "start"):
        dt.init(workers=workers)
        mesh = dt.init_device_mesh((dt.num_workers(),))
    if mesh is None:
        return
    for name, function in (("workers", _products), ("collectives", _collectives)):
        with _within(report, name):
            report.add(name, function(dt, mesh))
    with _within(report, "end"):
        dt.shutdown()


def _products(dt, mesh):
    import numpy as np

    count, rows = dt.num_workers(), 64
    numbers = np.random.default_rng(1)
    a = numbers.standard_normal((count * rows, rows)).astype(np.float32)
    b = numbers.standard_normal((rows, rows)).astype(np.float32)
    import torch

    parts = dt.distribute_tensor(torch.from_numpy(a), mesh, [dt.Shard(0)])
    product = (parts @ torch.from_numpy(b).to("dtorch")).cpu().numpy()
    wrong = [worker for worker in range(count)
             if not np.allclose(product[worker * rows:][:rows], a[worker * rows:][:rows] @ b,
                                rtol=1e-3, atol=1e-3)]
    if wrong:
        return failed(f"products of workers {wrong} differ from numpy's",
                      "see the rows on compute; else it is a fault of dtorch_mpi")
    return passed(f"a product on each of {count} is numpy's")


def _collectives(dt, mesh):
    import torch

    count = dt.num_workers()
    x = torch.arange(count * count * 4.0).reshape(count, count * 4)
    parts = dt.distribute_tensor(x, mesh, [dt.Shard(0)])
    for placements, what in ([dt.Replicate()], "all-gather"), ([dt.Shard(1)], "all-to-all"):
        moved = parts.redistribute(mesh, placements)
        if not torch.equal(moved.cpu(), x):
            return failed(f"{what} gave other values than were sent")
    if not torch.equal(parts.sum(0).cpu(), x.sum(0)):
        return failed("all-reduce gave another sum")
    return passed(f"all-gather, all-to-all and all-reduce between {count}")


@contextlib.contextmanager
def _within(report, name):
    def end():
        report.add(name, failed(f"did not end within {LIMIT} s",
                                "DTORCH_LOG=info tells how far each rank came"))
        report.end()
        os._exit(1)

    timer = threading.Timer(LIMIT, end)
    timer.start()
    try:
        yield
    except Exception as error:
        report.add(name, failure(error))
    finally:
        timer.cancel()
