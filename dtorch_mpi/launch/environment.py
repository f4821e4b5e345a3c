"""Which launcher started this process, from its environment alone; MPI is not touched."""

import os
from typing import NamedTuple

# Slurm numbers a job's own steps from 0; the batch script, salloc's shell and the like get step
# ids from here on, and python run directly in them was not launched.
FIRST_SPECIAL_STEP = 0xFFFFFFF0


class Launch(NamedTuple):
    """What the launcher says: `size` ranks, this one is `rank`.

    `launcher` is a name for messages; `variables` are the (name, value) pairs that say so.
    """

    size: int
    rank: int
    launcher: str
    variables: tuple[tuple[str, str], ...]


# The launchers' own variables come before Slurm's: inside an allocation mpirun starts its daemons
# as a Slurm step, and the ranks inherit that step's variables.
VARIABLES = (
    ("mpirun of Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("mpirun of MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    ("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
)
PMI = ("PMI_SIZE", "PMI_RANK")
SLURM = ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID")


def detect(variables=None):
    """The Launch that started this process, or None when it was started directly.

    A Slurm allocation alone is no launch: only a task of a step that srun made is one.
    """
    variables = os.environ if variables is None else variables
    for launcher, size, rank in VARIABLES:
        found = _launch(variables, launcher, size, rank)
        if found:
            return found
    # srun --mpi=pmi2 sets the PMI variables too; Hydra's marks tell the two apart.
    hydra = any(name.startswith(("HYDI_", "HYDRA_", "MPI_LOCALRANKID")) for name in variables)
    if hydra or not _in_slurm_step(variables):
        found = _launch(variables, "mpirun of MPICH (Hydra)" if hydra else "a PMI launcher", *PMI)
        if found:
            return found
    if _in_slurm_step(variables):
        return _launch(variables, "srun", *SLURM)
    return None


def in_slurm_allocation(variables=None):
    """Whether srun, called here, would start a step in an allocation that is there already."""
    variables = os.environ if variables is None else variables
    return bool(variables.get("SLURM_JOB_ID") or variables.get("SLURM_JOBID"))


def _in_slurm_step(variables):
    step = variables.get("SLURM_STEP_ID") or variables.get("SLURM_STEPID") or ""
    return step.isdecimal() and int(step) < FIRST_SPECIAL_STEP


def _launch(variables, launcher, size_name, rank_name):
    size, rank = variables.get(size_name, ""), variables.get(rank_name, "")
    if not (size.isdecimal() and rank.isdecimal()):
        return None
    return Launch(int(size), int(rank), launcher, ((size_name, size), (rank_name, rank)))
