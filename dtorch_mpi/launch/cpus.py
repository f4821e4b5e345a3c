"""The CPUs of a process, and how many threads a worker gets of them."""

import os
from typing import NamedTuple

AFFINITY_MASK = "the affinity mask"


def affinity():
    """The CPUs this process may run on, as a frozenset of their numbers."""
    return frozenset(os.sched_getaffinity(0))


def ranges(cpus):
    """Numbers of CPUs as text, such as 0-3,8."""
    parts = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


class Threads(NamedTuple):
    """How many threads a worker's operators get, and what says so."""

    number: int
    source: str


def worker_threads(setting, workers, controller=frozenset()):
    """The Threads of this process's worker: at least 1.

    `setting` (DTORCH_THREADS) when it is not 0, else OMP_NUM_THREADS when it is set; else this
    process's CPUs, divided by the workers that share them. A controller on the same CPUs gets one
    of them for itself, where that costs the workers a quarter of their threads at most.

    Args:
        setting: a number of threads, or 0.
        workers: affinity() of each worker on this node. Launchers often give each rank CPUs of its
            own, and those are not divided again.
        controller: affinity() of rank 0 where it is on this node and has no worker.

    Raises:
        ValueError: OMP_NUM_THREADS is not a positive number.
    """
    if setting:
        return Threads(setting, "DTORCH_THREADS")
    if omp := os.environ.get("OMP_NUM_THREADS", ""):
        # OpenMP allows a list, one number for each level of nesting; the first is ours.
        first = omp.split(",")[0].strip()
        if not first.isdecimal() or int(first) == 0:
            raise ValueError(
                f"OMP_NUM_THREADS={omp!r} is not a positive number; set it to the threads of "
                "one worker, or unset it")
        return Threads(int(first), "OMP_NUM_THREADS")
    mine = affinity()
    sharing = max(1, sum(1 for mask in workers if mask & mine))
    share = len(mine) // sharing
    if controller & mine:
        spared = (len(mine) - 1) // sharing
        share = spared if 4 * spared >= 3 * share else share
    return Threads(max(1, share), AFFINITY_MASK)
