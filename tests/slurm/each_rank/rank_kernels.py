"""What tests ask of the ranks of a Slurm job."""

import ctypes
import faulthandler
import json
import os
import signal

import torch
from torch.distributed.tensor import Shard

from dtorch_mpi.kernels import call, kernel
from dtorch_mpi.mesh import init_device_mesh
from dtorch_mpi.runtime import num_workers


def _on_each_worker(name, *args):
    """The sum of the numbers that the workers' kernels return."""
    mesh = init_device_mesh((num_workers(),))
    made = call(name, args, sizes=[num_workers()], dtype=torch.int64, mesh=mesh,
                placements=[Shard(0)])  # fmt: skip
    return made.sum().item()


def _facts(worker):
    import sys

    return {
        "worker": worker, "rank": int(os.environ["SLURM_PROCID"]), "pid": os.getpid(),
        "node": os.environ["SLURMD_NODENAME"], "cpus": sorted(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "terminal": sys.stdout.isatty() or sys.stderr.isatty(),
        "file_locking": os.environ["HDF5_USE_FILE_LOCKING"],
    }  # fmt: skip


@kernel("tests.slurm.tell")
def _tell(context):
    ((first, _),), = context.local_slices
    # In pieces, as print() writes them: labels must not come in between.
    print("facts", json.dumps(_facts(first)), sep=" ", flush=True)
    return torch.ones(1, dtype=torch.int64)


def tell():
    """Have each rank print a line "facts {...}"; returns how many workers did."""
    print("facts", json.dumps(_facts(None)), sep=" ", flush=True)
    return _on_each_worker("tests.slurm.tell")


@kernel("tests.slurm.show_signals")
def _show_signals(context):
    # Not Python's handlers, which run in the main thread: that of a worker does not come back.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    return torch.ones(1, dtype=torch.int64)


def show_signals():
    """Have each rank print a stack ("Stack (most recent ...") when it gets USR1."""
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    return _on_each_worker("tests.slurm.show_signals")


@kernel("tests.slurm.leave_late")
def _leave_late(context, seconds):
    library = ctypes.CDLL(None)
    usleep = ctypes.cast(library.usleep, ctypes.c_void_p)
    library.__cxa_atexit(usleep, ctypes.c_void_p(int(seconds * 1e6)), None)
    return torch.ones(1, dtype=torch.int64)


def leave_late(seconds):
    """Have each worker take so long in the C library's exit()."""
    return _on_each_worker("tests.slurm.leave_late", seconds)
