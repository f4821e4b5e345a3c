"""What rank 0 says of the job once it has started."""

from collections import Counter
from typing import NamedTuple

from dtorch_mpi.launch.cpus import AFFINITY_MASK
from dtorch_mpi.log import LOGGER
from dtorch_mpi.version import __version__


class Place(NamedTuple):
    """Where a worker runs.

    `node` names the machine's ranks as one (a host name may be that of several), `cpus` are the
    numbers of the CPUs it may run on, `threads` the number for an operator and `source` what says
    so (see cpus.Threads), `home` how values come back from it: memory, shared or network.
    """

    node: int
    host: str
    cpus: frozenset
    threads: int
    source: str
    home: str


WAYS = {"memory": "in this process", "shared": "by shared memory", "network": "by the network"}


def job_line(workers):
    """One line that says what a job has. workers: the Place of each."""
    hosts = len({worker.node for worker in workers})
    threads = sorted({worker.threads for worker in workers})
    number = f"{threads[0]}" if len(threads) == 1 else f"{threads[0]} to {threads[-1]}"
    sources = " or ".join(sorted({worker.source for worker in workers}))
    ways = Counter(worker.home for worker in workers)
    values = ", ".join(
        WAYS[home] + (f" from {ways[home]}" if len(ways) > 1 else "")
        for home in WAYS if home in ways)
    return (f"dtorch-mpi {__version__}: {_count(len(workers), 'worker')} on "
            f"{_count(hosts, 'host')}, {number} thread{'' if number == '1' else 's'} each (from "
            f"{sources}), values come back {values}")


def oversubscription(workers):
    """A warning where workers were told to use more threads than there are CPUs, or None.

    With one thread each there is nothing that a setting of threads could mend.
    """
    groups = {}
    for worker in workers:
        groups.setdefault((worker.node, worker.cpus), []).append(worker)
    for (_, cpus), members in groups.items():
        first = max(members, key=lambda worker: worker.threads)
        total = sum(worker.threads for worker in members)
        if total > len(cpus) and first.threads > 1 and first.source != AFFINITY_MASK:
            fitting = max(1, len(cpus) // len(members))
            return (f"{_count(len(members), 'worker')} on host {first.host}, {first.threads} "
                    f"threads each ({first.source}), on {_count(len(cpus), 'CPU')}: they will "
                    f"wait for each other; set {first.source}={fitting}, or unset it")
    return None


def announce(workers):
    """Log both: on rank 0, once."""
    LOGGER.info(job_line(workers))
    if warning := oversubscription(workers):
        LOGGER.warning(warning)


def _count(number, what):
    return f"{number} {what}{'' if number == 1 else 's'}"
