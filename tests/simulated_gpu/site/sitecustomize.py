"""Simulated GPUs for the processes of a job: loaded before dtorch_mpi, which looks for GPUs."""

import os
import sys
from importlib.abc import MetaPathFinder


class _LoadBefore(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "dtorch_mpi._worker":
            sys.meta_path.remove(self)
            import simulated_gpu

            simulated_gpu.load(int(os.environ["SIMULATED_GPUS"]))
            simulated_gpu.set_host_order("process")


if "SIMULATED_GPUS" in os.environ:
    sys.meta_path.insert(0, _LoadBefore())
