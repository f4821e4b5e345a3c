"""Figures of benchmarks: measured in turn, printed as lines and as a table."""

import os
import re
import statistics
import subprocess
import sys
import time

FIGURES = []  # (name, value, unit, target or None)


def report(name, value, unit, target=None):
    """Print a figure as `name=value unit`. target: at most, or if negative, at least its size."""
    FIGURES.append((name, value, unit, target))
    print(f"{name}={value:.4g} {unit}", flush=True)


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
    for name, value, unit, target in FIGURES:
        goal = ""
        if target is not None:
            met = value >= -target if target < 0 else value <= target
            goal = f">= {-target:g}" if target < 0 else f"<= {target:g}"
            goal += "" if met else "  MISSED"
        print(f"{name:44}{value:12.4g} {unit:10}{goal:>10}")
