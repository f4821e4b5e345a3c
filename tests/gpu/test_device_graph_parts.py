"""Which parts of a plan become graphs of the device (DTORCH_CUDA_GRAPHS).

A graph holds at least four operators of one graph of the program, one after the other, with their
views, writes in place and frees. It ends at an upload, a read, a Python kernel, a collective,
random numbers, a number that has changed from one run to the next, an operator that can't be
captured since the host waits in it, and where the program itself waits in the midst of it, each
time.
"""

import contextlib
import os
import threading
import time

import pytest
import torch
from steady_loops import (
    MOST,
    TIMES,
    check,
    counts,
    fresh_graphs,  # noqa: F401
    growth,
    hold,
    on_both,
    settle,
    steady,
)

import dtorch_mpi as dt
from dtorch_mpi.kernels import call, kernel

pytestmark = pytest.mark.skipif(os.environ["DTORCH_DEVICE"] != "gpu", reason="CPUs have no graphs")


@kernel("tests.twos")
def _twos(context):
    return torch.full(context.sizes[0], 2.0, device=context.device)


def twos(device):
    if device == "cpu":
        return torch.full((16, 16), 2.0)
    return call("tests.twos", [], sizes=[16, 16], dtype=torch.float32)


def four_operators(x):
    return ((x * 2).relu() + 1).tanh()


@pytest.mark.parametrize("between, parts", [
    (lambda y, i: y, 1),
    (lambda y, i: y.t().contiguous()[:, ::2].repeat(1, 2), 1),
    (lambda y, i: y.mul_(2).clamp_(max=1), 1),
    (lambda y, i: y + torch.full((16, 16), float(i)).to(y.device), 2),
    (lambda y, i: y * twos(y.device.type), 2),
    (lambda y, i: y * (i + 1), 2),
    (lambda y, i: y[:, i % 4:i % 4 + 12].sum(1), 2),
    (lambda y, i: y + torch.rand_like(y) * 0, 2),
    (lambda y, i: torch.linalg.inv(y + 16 * torch.eye(16, device=y.device)), 2),
], ids=["nothing", "views and copies", "writes in place", "an upload", "a Python kernel",
        "a number that changes", "a place that changes", "random numbers", "a wait of the host"])
def test_what_ends_a_part(between, parts):
    x = on_both(16, 16)

    def step(device, i):
        return four_operators(between(four_operators(x[device]), i))

    check(step, parts=parts)


def test_three_operators_are_none():
    x = on_both(16, 16)
    check(lambda device, i: (x[device] * 2).relu() + 1, parts=0)


def test_fused_kernels_are_part_of_it():
    pytest.importorskip("triton", reason="PyTorch for CUDA brings it")
    dt.shutdown()
    dt.init(cuda_graphs=True, triton=True)
    x = on_both(160, 160)

    def step(device, i):
        y = four_operators(four_operators(x[device]) @ x[device]) @ x[device]
        return (four_operators(y) @ x[device]).sum(0)

    check(step, parts=1, tolerance=1e-4)
    stages = max(dt.debug.graph(), key=lambda stages: len(stages["program"]))
    assert stages["fusion"].count("dtorch::fused(") == 3


def test_a_collective_ends_a_part():
    dt.shutdown()
    dt.init(workers=2, cuda_graphs=True)
    mesh = dt.init_device_mesh((2,))
    full = torch.randn(64, 64) / 8
    x = dt.distribute_tensor(full, mesh, [dt.Shard(0)])

    def step(device, i):
        if device == "cpu":
            return four_operators(four_operators(full).sum(0))
        total = four_operators(x).sum(0).redistribute(mesh, [dt.Replicate()])
        return four_operators(total)

    check(step, parts=2 * 2, tolerance=1e-4)


def test_a_pause_of_the_program_ends_a_part():
    """Workers that have nothing to do are not kept waiting for the rest of a part; where that
    comes late each time, it is a part of its own."""
    x = on_both(16, 16)
    grown = []
    for _ in range(MOST):
        before = counts()
        y = four_operators(four_operators(x["dtorch"]))
        time.sleep(0.02)
        y = four_operators(four_operators(y))
        settle()
        grown.append(growth(before))
        if grown[-1][0] > 1:
            break
    assert grown[-1][0] > 1, grown
    expected = x["cpu"]
    for _ in range(4):
        expected = four_operators(expected)
    torch.testing.assert_close(y.cpu(), expected)


def test_a_wait_for_another_graph_ends_a_part():
    x, shared = on_both(16, 16), on_both(16, 16)
    other, grown = dt.Graph(), []

    def step(device, graph):
        with graph:
            shared[device].mul_(0.9)
        return four_operators(four_operators(four_operators(x[device])) + shared[device])

    for _ in range(MOST):
        before = counts()
        hold()
        found = step("dtorch", other)
        settle()
        torch.testing.assert_close(found.cpu(), step("cpu", contextlib.nullcontext()))
        del found
        settle()
        grown.append(growth(before))
        if steady(grown, 2):
            return
    raise AssertionError(grown)


def test_graphs_of_the_program_run_theirs_at_once():
    """Each on a stream of its own, with memory of its own, and none where another captures; the
    pool that streams come from has fewer than these want."""
    x = on_both(16, 16)
    graphs, found = [dt.Graph() for _ in range(12)], {}

    def loop(graph):
        with graph:
            y = x["dtorch"]
            for _ in range(TIMES):
                for _ in range(3):
                    y = four_operators(y @ x["dtorch"])
                dt.mark_step()
            found[graph] = y

    threads = [threading.Thread(target=loop, args=(graph,)) for graph in graphs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = x["cpu"]
    for _ in range(3 * TIMES):
        expected = four_operators(expected @ x["cpu"])
    for graph in graphs:
        with graph:
            torch.testing.assert_close(found[graph].cpu(), expected, rtol=1e-4, atol=1e-4)
    assert counts()[0] > len(graphs)
