"""What rank 0 says of the job once it has started."""

from collections import Counter
from typing import NamedTuple

from dtorch_mpi.launch.cpus import AFFINITY_MASK
from dtorch_mpi.launch.placement import WorkerDevice
from dtorch_mpi.log import LOGGER
from dtorch_mpi.version import __version__


class Place(NamedTuple):
    """Where a worker runs.

    `node` names the machine's ranks as one (a host name may be that of several), `cpus` are the
    numbers of the CPUs it may run on, `threads` the number for an operator and `source` what says
    so (see cpus.Threads), `home` how values come back from it: memory, shared or network, `device`
    its WorkerDevice, where that is known.
    """

    node: int
    host: str
    cpus: frozenset
    threads: int
    source: str
    home: str
    device: WorkerDevice | None = None


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
            f"{_count(hosts, 'host')}, {_devices(workers)}, "
            f"{number} thread{'' if number == '1' else 's'} each (from {sources}), "
            f"values come back {values}")


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
    """Log it, and what a user may want to change: on rank 0, once."""
    # Not above: doctor uses this module also where the extensions can't be loaded.
    from dtorch_mpi.device_groups import host_memory_line

    LOGGER.info(job_line(workers))
    by_host_memory = host_memory_line([worker.device for worker in workers])
    for warning in oversubscription(workers), by_host_memory:
        if warning:
            LOGGER.warning(warning)


def _devices(workers):
    on_gpus = [worker.device for worker in workers if worker.device.is_gpu]
    gpus = _count(len({device.identity for device in on_gpus}), "GPU")
    if len(on_gpus) == len(workers):
        return f"on {gpus}"
    if on_gpus:
        return f"{len(on_gpus)} on {gpus} and {len(workers) - len(on_gpus)} on CPUs (no GPU seen)"
    unused = any(worker.device.sees_gpu for worker in workers)
    return f"on CPUs ({'DTORCH_DEVICE=cpu' if unused else 'no GPU seen'})"


def _count(number, what):
    return f"{number} {what}{'' if number == 1 else 's'}"
