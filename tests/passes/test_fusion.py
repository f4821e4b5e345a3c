"""Chains of pointwise operators as one kernel: the same bits, and what may go wrong on the way."""

import json
import os
import re
import threading
from pathlib import Path

import pytest
import torch
from launching import run_job
from pointwise_chain import chain
from repeated import TIMES, count, rewritten, settle

import dtorch_mpi as dt

N = 30_021
PROGRAM = Path(__file__).with_name("pointwise_chain.py")


def start(device, step=0):
    return torch.linspace(-3, 3, N).to(device)


def test_a_chain_becomes_one_kernel_that_takes_its_numbers():
    def program(device, step):
        return chain(start(device), step)

    stages, growth = rewritten(program, kernels=True)
    assert count(stages["dead_nodes"], "aten::sigmoid") == 3
    assert count(stages["fusion"], "dtorch::fused") == 1
    assert count(stages["fusion"], "aten::sigmoid") == count(stages["fusion"], "aten::relu") == 0
    assert growth["replays"] >= 1
    assert dt.debug.counters()["failed_kernels"] == 0


def test_what_others_read_or_outlives_the_window_is_kept():
    kept = {}

    def program(device, step):
        x = start(device).view(3, -1)
        mask = x > 0.5
        y = torch.where(mask, x * 2, x)
        z = (y + 0.5 * x) / 3
        total = y.sum(1)  # reads what is made in the midst
        kept[device] = z, mask  # until the next time
        return z, mask, total, torch.clamp(z, -1, 1 + step).neg()

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["fusion"], "dtorch::fused") >= 1
    assert count(stages["fusion"], "aten::where.self") == 0


def test_functions_that_are_mkl_s():
    def program(device, step):
        x = torch.linspace(-3, 3, 200_003).to(device)
        y = torch.tanh(x.abs().sqrt() * (1 + step)) + torch.exp(x * 0.5)
        return y, torch.log(y.erf() + 1.5) / 3

    stages, _ = rewritten(program, kernels=True)
    assert count(stages["fusion"], "dtorch::fused") == 1
    assert count(stages["fusion"], "aten::exp") == 0
    assert dt.debug.counters()["failed_kernels"] == 0


def seconds_of_threads():
    """The processor time that each of this process's threads has taken."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = {task.name: (task / "stat").read_text().rpartition(")")[2].split()
              for task in Path("/proc/self/task").iterdir()}  # fmt: skip
    return {name: (int(of[11]) + int(of[12])) / ticks for name, of in fields.items()}


@pytest.mark.skipif(torch.get_num_threads() == 1, reason="an operator has one thread here")
def test_a_kernel_runs_on_all_threads_of_an_operator():
    def program(device, step):
        return chain(start(device), step)

    stages, _ = rewritten(program, kernels=True)
    found = re.search(r"dtorch::fused\((\d+), \[[^]]*\], \[([^]]*)\]", stages["fusion"])
    x, numbers = torch.ones(1_000_000), list(map(float, found[2].split(", ")))
    before = seconds_of_threads()
    for _ in range(200):
        torch.ops.dtorch.fused(int(found[1]), [x], numbers, [])
    took = {name: seconds - before.get(name, 0.0) for name, seconds in seconds_of_threads().items()}
    assert sum(seconds > 0.2 * max(took.values()) for seconds in took.values()) > 1, took


@pytest.mark.parametrize("why", ["small", "other strides", "written between", "judges its values",
                                 "alone", "other shapes"])  # fmt: skip
def test_what_stays_as_it_is(why):
    def program(device, step):
        x = start(device)[: 100 if why == "small" else N - 1].clone()
        if why == "other strides":
            x = x.view(20, -1).t()
            return x.relu().sigmoid()
        if why == "written between":
            y = x.relu()
            x.mul_(2)
            return y * x
        if why == "judges its values":
            return (x.relu() * 100).long() % 7
        if why == "alone":
            return x.relu().sum()
        if why == "other shapes":
            return x.relu() * x.view(2, -1)[:, :1].relu()[0]
        return x.relu().sigmoid()

    stages, _ = rewritten(program, kernels=True)
    name = "aten::remainder" if why == "judges its values" else "aten::relu"
    assert count(stages["fusion"], name) + count(stages["fusion"], name + ".Scalar") >= 1


def test_a_window_is_left_in_its_midst():
    def program(device, step):
        x = start(device)
        if step % 3 == 2:
            for i in range(2):
                x = torch.sigmoid(torch.relu(x * (0.9 + step) + 0.1 * i))
            return x.sum()
        return chain(x, step)

    for step in range(5 * TIMES):
        if step == TIMES:
            settle(kernels=True)
        torch.testing.assert_close(
            program("dtorch", step).cpu(), program("cpu", step), rtol=0, atol=0
        )
    assert dt.debug.counters()["fused_kernels"] >= 1


def test_a_failure_before_it_is_told():
    def program(device, step):
        x = start(device)
        if step == TIMES:
            # Fails on the workers: the index is known to them alone.
            x = x[torch.tensor([N + 5], device=device).expand(N)]
        else:
            x = x[torch.arange(N, device=device)]
        return chain(x, step)

    for step in range(TIMES):
        program("dtorch", step).cpu()
        settle(kernels=True)
    with pytest.raises(dt.WorkerError, match="index"):
        program("dtorch", TIMES).cpu()


def counters_of(*arguments, **options):
    ended = run_job(PROGRAM, limit=110, **options)
    assert ended.code == 0, ended.err
    assert ended.err == ""
    return json.loads(ended.out)


@pytest.mark.parametrize("launcher", ["thread", "mpirun"])
def test_uneven_parts_on_three_workers(launcher):
    counters = counters_of(launcher=launcher, workers=3)
    assert counters["in_use"] and counters["fused_kernels"] == 1


def test_without_a_compiler_it_is_given_up(tmp_path):
    settings = {"CXX": "/bin/false", "DTORCH_CACHE": str(tmp_path)}
    counters = counters_of(settings=settings)
    assert not counters["in_use"]
    assert (counters["fused_kernels"], counters["failed_kernels"]) == (0, 1)
    assert not list(tmp_path.glob("*.so"))


def test_a_cache_that_can_not_be_written_is_given_up(tmp_path):
    (tmp_path / "file").write_text("")
    counters = counters_of(settings={"DTORCH_CACHE": str(tmp_path / "file" / "cache")})
    assert not counters["in_use"] and counters["failed_kernels"] == 1


def test_two_jobs_at_once_share_a_cache_with_a_damaged_kernel(tmp_path):
    settings = {"DTORCH_CACHE": str(tmp_path)}
    assert counters_of()["in_use"]  # it is in the cache of all tests now
    for kernel in Path(os.environ["DTORCH_CACHE"]).glob("fused-*.so"):
        data = kernel.read_bytes()
        (tmp_path / kernel.name).write_bytes(data[: len(data) // 2])
    found = []
    jobs = [threading.Thread(target=lambda: found.append(counters_of(settings=settings)))
            for _ in range(2)]  # fmt: skip
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [counters["in_use"] for counters in found] == [True, True]
