import pytest

from dtorch_mpi.launch.environment import detect

SALLOC = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}
CASES = {
    "nothing": ({}, None),
    "hydra": ({"PMI_SIZE": "3", "PMI_RANK": "1", "HYDI_CONTROL_FD": "7"},
              (3, 1, "mpirun of MPICH (Hydra)")),
    "open mpi": ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "3"},
                 (4, 3, "mpirun of Open MPI")),
    "another pmi": ({"PMI_SIZE": "2", "PMI_RANK": "0"}, (2, 0, "a PMI launcher")),
    "srun": ({**SALLOC, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"},
             (4, 2, "srun")),
    "srun, old name of the step": (
        {**SALLOC, "SLURM_STEPID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"},
        (4, 2, "srun")),
    "srun --mpi=pmi2": (
        {**SALLOC, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2",
         "PMI_SIZE": "4", "PMI_RANK": "2", "PMI_FD": "9"}, (4, 2, "srun")),
    "python in salloc's old shell": (SALLOC, None),
    "python in salloc's interactive step": (
        {**SALLOC, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "8"}, None),
    "python in the batch script": (
        {**SALLOC, "SLURM_STEP_ID": "4294967291", "SLURM_STEP_NUM_TASKS": "8"}, None),
    "mpirun of MPICH in sbatch, its daemons a step": (
        {**SALLOC, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1",
         "PMI_SIZE": "8", "PMI_RANK": "5", "MPI_LOCALRANKID": "1"},
        (8, 5, "mpirun of MPICH (Hydra)")),
    "mpirun of Open MPI in sbatch": (
        {**SALLOC, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1",
         "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5"},
        (8, 5, "mpirun of Open MPI")),
    "half a launch": ({"PMI_SIZE": "3"}, None),
    "not a number": ({"PMI_SIZE": "", "PMI_RANK": "x"}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_detect(case):
    variables, expected = CASES[case]
    found = detect(variables)
    assert (found and tuple(found[:3])) == expected
    if found:
        assert dict(found.variables).items() <= variables.items()
