"""Which device a worker gets, and whether rank 0 has one."""

import socket
from typing import NamedTuple

import torch


class WorkerDevice(NamedTuple):
    """The device of a worker.

    `device` is its name in the worker's process, as cuda:0; `identity` differs between any two
    devices of a job, whatever processes call them. `sees_gpu`: whether there was a GPU to take.
    """

    device: str
    host: str
    identity: str
    sees_gpu: bool

    @property
    def is_gpu(self):
        return self.device != "cpu"


def accelerators():
    """(type, number) of the GPUs that this process sees, ("cpu", 0) without. No CUDA context."""
    # Not above: doctor uses this module also where the extensions can't be loaded.
    from dtorch_mpi import _collectives

    return _collectives.accelerators()


def visible_gpus():
    """How many GPUs this process sees; makes no CUDA context."""
    return accelerators()[1]


def device_for(worker_index_on_node, wanted=""):
    """The torch.device of the worker with this index among the workers of its node.

    wanted: the setting `device`; "gpu" is held by check_devices, which knows all workers.
    """
    kind, number = accelerators()
    if number == 0 or wanted == "cpu":
        return torch.device("cpu")
    return torch.device(kind, worker_index_on_node % number)


def worker_device(device):
    """The WorkerDevice of a worker of this process. Makes a CUDA context for a device of CUDA."""
    host = socket.gethostname()
    identity = f"{host} {device}"
    # Processes may number the GPUs of a node each in its own way, as CUDA_VISIBLE_DEVICES has it.
    if device.type == "cuda" and torch.cuda.is_available():
        identity = str(torch.cuda.get_device_properties(device).uuid)
    return WorkerDevice(str(device), host, identity, visible_gpus() > 0)


def check_devices(wanted, devices):
    """Raise a RuntimeError if the setting `device` asks for GPUs and a worker sees none.

    devices: the WorkerDevice of each worker.
    """
    if wanted != "gpu":
        return
    without = [f"{index} on host {worker.host}" for index, worker in enumerate(devices)
               if not worker.is_gpu]
    if without:
        raise RuntimeError(
            f"DTORCH_DEVICE=gpu, and {len(without)} of {len(devices)} workers see no GPU, first "
            f"worker {without[0]}: see what nvidia-smi and CUDA_VISIBLE_DEVICES say there, whether "
            f"this PyTorch ({torch.__version__}) is built for them, and whether the scheduler was "
            "asked for GPUs; or unset DTORCH_DEVICE")


def cohost_default(ranks_on_node0, gpus):
    """Whether rank 0 hosts a worker too when nobody says: its node has one rank per GPU."""
    return gpus > 0 and ranks_on_node0 == gpus
