"""Which device a worker gets, and whether rank 0 has one."""

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
