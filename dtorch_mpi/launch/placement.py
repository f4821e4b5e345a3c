"""Which device and how many threads a worker gets."""

import os

import torch


def visible_gpus():
    """How many GPUs this process sees; makes no CUDA context."""
    return torch.cuda.device_count()


def device_for(worker_index_on_node):
    """The torch.device of the worker with this index among the workers of its node."""
    gpus = visible_gpus()
    if gpus == 0:
        return torch.device("cpu")
    return torch.device("cuda", worker_index_on_node % gpus)


def cohost_default(ranks_on_node0, gpus):
    """Whether rank 0 hosts a worker too when nobody says: its node has one rank per GPU."""
    return gpus > 0 and ranks_on_node0 == gpus


def affinity():
    """The CPUs this process may run on, as a frozenset of their numbers."""
    return frozenset(os.sched_getaffinity(0))


def cpu_threads(workers_on_node, masks=None):
    """How many threads a worker's operators get, at least 1.

    OMP_NUM_THREADS when it is set; else this process's CPUs, divided by the workers that share
    them.

    Args:
        workers_on_node: number of workers on this node.
        masks: affinity() of each of them. Launchers often give each rank CPUs of its own, and
            those are not divided again. Without masks all are taken to share the same CPUs.

    Raises:
        ValueError: OMP_NUM_THREADS is not a positive number.
    """
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if setting:
        # OpenMP allows a list, one number for each level of nesting; the first is ours.
        first = setting.split(",")[0].strip()
        if not first.isdecimal() or int(first) == 0:
            raise ValueError(
                f"OMP_NUM_THREADS={setting!r} is not a positive number; set it to the threads of "
                "one worker, or unset it")
        return int(first)
    mine = affinity()
    sharing = workers_on_node
    if masks is not None:
        sharing = sum(1 for mask in masks if mask & mine)
    return max(1, len(mine) // max(1, sharing))
