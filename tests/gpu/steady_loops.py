"""Loops whose parts workers run as graphs of their devices, from some time on each time."""

import gc
import threading

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi.kernels import call, kernel

TIMES = 16
MOST = 80
STEADY = 6  # so many times all alike
_issued = threading.Event()


@pytest.fixture(autouse=True)
def fresh_graphs():
    """For all tests of a module that imports it."""
    dt.shutdown()
    dt.init(cuda_graphs=True)
    # What it frees in the midst of a step would be a departure from the plan.
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    release()
    dt.shutdown()


@kernel("tests.hold")
def _hold(context):
    _issued.wait(20)
    return torch.zeros(1, device=context.device)


def hold():
    """Keep the workers busy until release(), as they are where a program is ahead of them."""
    _issued.clear()
    call("tests.hold", [], sizes=[1], dtype=torch.float32)


def release():
    _issued.set()


def settle():
    """The end of a step; whatever passes make of it is there for the next one."""
    release()
    dt.mark_step()
    dt.sync()
    for engine in dt.runtime.current().engines.values():
        engine.planner.wait(100, kernels=True)


def between(device):
    """Ends a part in the midst of what a test's `step` does."""
    if device == "dtorch":
        settle()
        hold()


def counts():
    """(runs of parts as graphs, captures) so far, of all workers and graphs of the program."""
    workers = dt.runtime.current()._hosted.all_workers
    return (sum(worker.num_graphs_replayed for worker in workers),
            sum(worker.num_graphs_captured for worker in workers))  # fmt: skip


def growth(before):
    return tuple(now - then for now, then in zip(counts(), before, strict=True))


def steady(grown, parts):
    """Whether just that many parts ran as graphs in each of the last times, none captured anew."""
    return grown[-STEADY:] == [(parts, 0)] * STEADY


def check(step, *, parts, tolerance=1e-5):
    """step(device, i): on the device as on the CPU, TIMES times at least, until that many parts of
    it run as graphs each time. None: any number.

    An input may lie where it was for a while, by chance, before it does not: a capture more."""
    grown = []
    for i in range(MOST):
        if i >= TIMES and (parts is None or steady(grown, parts)):
            return
        before = counts()
        hold()
        found = step("dtorch", i)
        release()
        expected = step("cpu", i)
        torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=tolerance)
        del found
        settle()
        grown.append(growth(before))
    raise AssertionError(f"expected {parts} parts each time, got (runs, captures) {grown}")


def on_both(*sizes):
    """Small numbers on the CPU and on the device."""
    torch.manual_seed(0)
    made = torch.randn(*sizes) / 8
    return {"cpu": made, "dtorch": made.to("dtorch")}
