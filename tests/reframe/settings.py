"""A configuration for any machine: this one under mpirun, or a Slurm cluster under srun.

Sites have one of their own, with their modules and access options; the checks look for what these
have: the features `mpi` and `dtorch`, cores and GPUs.
"""

import os
import shutil
import sys

CORES = len(os.sched_getaffinity(0))
FEATURES = ["dtorch", *(["h5dump"] if shutil.which("h5dump") else [])]


def partition(name, scheduler, launcher, **more):
    return {
        "name": name,
        "scheduler": scheduler,
        "launcher": launcher,
        "environs": ["venv"],
        "features": ["mpi"],
        "max_jobs": 1,  # figures are taken alone
        "processor": {"num_cpus": CORES, "num_cpus_per_core": 1, "num_sockets": 1,
                      "num_cpus_per_socket": CORES},
        **more,
    }  # fmt: skip


site_configuration = {
    "systems": [
        {
            "name": "local",
            "hostnames": [".*"],
            "partitions": [partition("ranks", "local", "mpirun")],
        },
        {
            # reframe --system=cluster, on a machine with sbatch
            "name": "cluster",
            "hostnames": [],
            "partitions": [
                partition(
                    # squeue: clusters without accounting, too
                    "ranks", "squeue", "srun",
                    env_vars=[
                        # The mpich wheel's; pmix for Open MPI.
                        ["SLURM_MPI_TYPE", os.environ.get("SLURM_MPI_TYPE", "pmi2")],
                        ["SLURM_KILL_BAD_EXIT", "1"],
                    ],
                )
            ],
        },
    ],
    "environments": [
        {
            "name": "venv",
            "features": FEATURES,
            # The Python that runs ReFrame; its folder has mpirun too, where MPI is a wheel.
            "env_vars": [["PATH", f"{os.path.dirname(sys.executable)}:$PATH"]],
        }
    ],
    "storage": [{"enable": False}],
}  # fmt: skip
