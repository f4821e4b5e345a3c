"""Figures of benchmarks: measured in turn, printed as lines and as a table."""

import json
import os
import re
import statistics
import subprocess
import sys
import time
from typing import NamedTuple


class Figure(NamedTuple):
    """target: at most, or if negative, at least its size; None: there is none."""

    name: str
    value: float
    unit: str
    target: float | None = None

    @property
    def is_met(self):
        return self.value >= -self.target if self.target < 0 else self.value <= self.target

    @property
    def goal(self):
        """The target and whether it is missed, as a text."""
        if self.target is None:
            return ""
        text = f">= {-self.target:g}" if self.target < 0 else f"<= {self.target:g}"
        return text + ("" if self.is_met else "  MISSED")


FIGURES = []
LEFT_OUT = {}  # what was not measured: why


def report(name, value, unit, target=None):
    """Print a figure as `name=value unit`. target: as a Figure's."""
    FIGURES.append(Figure(name, value, unit, target))
    print(f"{name}={value:.4g} {unit}", flush=True)


def leave_out(name, why):
    """Say that a figure or a part can't be measured here."""
    LEFT_OUT[name] = why
    print(f"{name} left out: {why}", flush=True)


def write(path, failed=()):
    """All of it as JSON, for gpu_report. failed: names of those left out for an error."""
    with open(path, "w") as file:
        json.dump({"figures": FIGURES, "left_out": LEFT_OUT, "failed": list(failed)}, file)


def seconds(function, count):
    begin = time.perf_counter()
    for _ in range(count):
        function()
    return (time.perf_counter() - begin) / count


def in_turn(first, second, count, rounds, between=lambda: None, warm=50):
    """Medians of seconds a call, first and second measured alternately."""
    taken = ([], [])
    for _ in range(rounds):
        for function, times in zip((first, second), taken, strict=True):
            seconds(function, warm)
            between()
            times.append(seconds(function, count))
            between()
    return statistics.median(taken[0]), statistics.median(taken[1])


def start_ranks(script, ranks, *options):
    """Run a script under mpirun; returns its figures as (name, value, unit), all strings.

    Raises RuntimeError with its errors when it does not end well.
    """
    command = ["mpirun", "-n", str(ranks), sys.executable, os.path.abspath(script), *options]
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
    if "Open MPI" in version or "OpenRTE" in version:
        command[1:1] = ["--oversubscribe", "--bind-to", "none", "--allow-run-as-root"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return re.findall(r"^(\S+)=(\S+) (\S+)$", done.stdout, re.MULTILINE)


def finish():
    """The last line: by it, a reader knows that no figure is missing for an early end."""
    print(f"{len(FIGURES)} figures measured", flush=True)


def table():
    print(f"\n{'figure':44}{'value':>12} {'unit':10}{'target':>10}")
    for figure in FIGURES:
        print(f"{figure.name:44}{figure.value:12.4g} {figure.unit:10}{figure.goal:>10}")
