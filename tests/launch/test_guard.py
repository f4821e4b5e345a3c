import subprocess
import sys

import pytest

from dtorch_mpi.launch.environment import Launch, detect
from dtorch_mpi.launch.guard import check_extensions, check_launcher, check_world
from dtorch_mpi.launch.library import Library, family_of, loaded_library

MPICH = Library("mpich", "MPICH Version: 5.0.2", "/opt/mpich/lib/libmpi.so.12",
                frozenset(("pmi",)))
OPEN_MPI = Library("openmpi", "Open MPI v5.0.11", "/opt/openmpi/lib/libmpi.so.40")
SRUN = Launch(4, 1, "srun", (("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "1")))
HYDRA = Launch(3, 0, "mpirun of MPICH (Hydra)", (("PMI_SIZE", "3"), ("PMI_RANK", "0")))


@pytest.mark.parametrize("launch, size", [(None, 1), (SRUN, 4), (SRUN._replace(size=1), 1)])
def test_sound_worlds_pass(launch, size):
    check_world(launch, size, MPICH)


@pytest.mark.parametrize("launch, library, expected", [
    (SRUN, MPICH, ["SLURM_STEP_NUM_TASKS=4", "srun --mpi=pmi2", MPICH.path]),
    (SRUN, OPEN_MPI, ["srun started 4 processes", "srun --mpi=pmix", OPEN_MPI.version]),
    (SRUN, Library("unknown", "X", ""), ["srun --mpi=list", "path unknown"]),
    (HYDRA, OPEN_MPI, ["PMI_SIZE=3", "two MPIs", "python -m dtorch_mpi launch -n 3"]),
    (HYDRA, MPICH, ["two installations of MPICH"]),
])
def test_text_names_variable_library_and_fix(launch, library, expected):
    with pytest.raises(RuntimeError) as error:
        check_world(launch, 1, library)
    for part in [*expected, "python -m mpi4py --mpi-library"]:
        assert part in str(error.value)


PMIX = {"PMIX_RANK": "1", "PMIX_NAMESPACE": "job"}


@pytest.mark.parametrize("launch, library, variables", [
    (None, MPICH, PMIX), (SRUN, MPICH, {}), (SRUN, MPICH, PMIX | {"PMI_RANK": "1"}),
    (SRUN, OPEN_MPI, PMIX), (SRUN._replace(size=1), MPICH, PMIX),
])
def test_libraries_that_can_meet_pass(launch, library, variables):
    check_launcher(launch, library, variables)


def test_mpich_under_a_server_of_pmix_only():
    with pytest.raises(RuntimeError, match="by PMIx, which") as error:
        check_launcher(SRUN, MPICH, PMIX)
    assert "srun --mpi=pmi2" in str(error.value)


def test_extensions_and_mpi4py_have_one_library():
    check_extensions()


def test_extensions_of_another_library():
    with pytest.raises(RuntimeError, match="two MPI libraries in one process") as error:
        check_extensions(OPEN_MPI)
    for part in (OPEN_MPI.path, loaded_library().path, "were built against", "MPICC="):
        assert part in str(error.value)


def test_extensions_that_cannot_be_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "dtorch_mpi._mpi", None)
    monkeypatch.delattr("dtorch_mpi._mpi", raising=False)
    with pytest.raises(RuntimeError, match="calls MPI can't be loaded: .*_mpi"):
        check_extensions()


@pytest.mark.parametrize("text, family", [
    ("HYDRA build details:", "mpich"), ("Intel(R) MPI Library", "mpich"),
    ("mpirun (Open MPI) 5.0.11", "openmpi"), ("PRRTE 3.0", "openmpi"), ("fish", "unknown"),
])
def test_family_of(text, family):
    assert family_of(text) == family


@pytest.mark.timeout(60)
def test_real_processes_that_see_a_world_of_one(mpirun, environment, tmp_path):
    # As with two MPIs: the launcher is there, and MPI does not hear of it.
    code = (
        "import os\n"
        "from dtorch_mpi.launch import environment, guard\n"
        "launch = environment.detect()\n"
        "for name in list(os.environ):\n"
        "    if name.startswith(('PMI', 'OMPI', 'PRTE')): del os.environ[name]\n"
        "from mpi4py import MPI\n"
        "guard.check_world(launch, MPI.COMM_WORLD.size)\n")
    done = subprocess.run([mpirun, "-n", "2", sys.executable, "-c", code],
                          env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert done.returncode != 0
    assert "started 2 processes" in done.stderr
    assert loaded_library().path in done.stderr


def test_this_process_has_a_library():
    library = loaded_library()
    assert library.family in ("mpich", "openmpi")
    assert library.path and library.version
    assert detect({}) is None
