"""A second MPI beside the one that dtorch_mpi was built against: real wheels, real launchers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dtorch_mpi.launch.library import loaded_library

ROOT = Path(__file__).parents[2]
LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}
SCRIPT = "import dtorch_mpi; dtorch_mpi.init(); print('started')"


@pytest.fixture(scope="module")
def other_mpi():
    """(folder, family) of an MPI that is not ours, in an environment of its own."""
    family = "openmpi" if loaded_library().family == "mpich" else "mpich"
    folder = ROOT / "build" / f"other-mpi-{family}"
    if not (folder / "lib" / LIBRARIES[family]).exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--python", folder, "install", "--quiet", family],
            capture_output=True, text=True, timeout=100)
        if done.returncode != 0:
            pytest.skip(f"pip install {family}: {done.stderr.strip().splitlines()[-1]}")
    return folder, family


def started(mpirun, **settings):
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | settings
    return subprocess.run([mpirun, "-n", "2", sys.executable, "-c", SCRIPT], env=environment,
                          capture_output=True, text=True, timeout=60)


@pytest.mark.timeout(180)
def test_mpi4py_loads_another(other_mpi):
    folder, family = other_mpi
    library = folder / "lib" / LIBRARIES[family]
    done = started(folder / "bin" / "mpirun", MPI4PY_LIBMPI=str(library))
    assert done.returncode != 0
    assert "started" not in done.stdout
    for part in ("RuntimeError: two MPI libraries in one process", str(library),
                 loaded_library().path, "Fix: build dtorch_mpi against"):
        assert part in done.stderr


@pytest.mark.timeout(180)
def test_launcher_of_another(other_mpi):
    folder, family = other_mpi
    done = started(folder / "bin" / "mpirun")
    assert done.returncode != 0
    assert "started" not in done.stdout
    name = {"openmpi": "mpirun of Open MPI", "mpich": "mpirun of MPICH (Hydra)"}[family]
    for part in (f"RuntimeError: {name} started 2 processes", "two MPIs",
                 "Fix: start with the mpirun beside that library"):
        assert part in done.stderr


@pytest.mark.timeout(180)
def test_doctor_tells_of_it(other_mpi, tmp_path):
    folder, family = other_mpi
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "MPI4PY_LIBMPI": str(folder / "lib" / LIBRARIES[family])}
    done = subprocess.run([sys.executable, "-m", "dtorch_mpi", "doctor"], env=environment,
                          cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "FAIL  MPI library      two MPI libraries in one process" in done.stdout
