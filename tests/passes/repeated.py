"""Runs a stretch of a program until workers run it as passes have rewritten it."""

import torch

import dtorch_mpi as dt

TIMES = 7
# From then on workers run what passes have made.
REWRITTEN = TIMES - 2


def settle(kernels=False):
    """Wait until each window that has come twice is rewritten, with compiled kernels if asked."""
    dt.sync()
    dt.runtime.current().main.planner.wait(100 if kernels else 10, kernels=kernels)


def rewritten(program, kernels=False):
    """Run `program(device, step)` as often as it takes, and compare each result with plain
    PyTorch's, bit for bit.

    Returns the stages of its window, {"program": text, pass: text, ...}, and the counters' growth
    over the last time.
    """
    for step in range(TIMES):
        if step == REWRITTEN:
            settle(kernels)
        dt.sync()
        before = dt.debug.counters()
        found, expected = program("dtorch", step), program("cpu", step)
        if not isinstance(found, tuple):
            found, expected = (found,), (expected,)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0)
        growth = {name: n - before[name] for name, n in dt.debug.counters().items()}
    assert growth["departures"] == 0
    stages = max(dt.debug.graph(), key=lambda stages: len(stages["program"]))
    return stages, growth


def count(text, name):
    return sum(f"{name}(" in line for line in text.splitlines())
