"""`python -m dtorch_mpi info`, where all is well and where nothing is."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
import torch

from dtorch_mpi.built_against import built_against
from dtorch_mpi.launch.library import loaded_library

ROOT = Path(__file__).parents[2]


def info(cwd, *path, **variables):
    """What it prints, by the first words of each line."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))} | variables
    done = subprocess.run([sys.executable, "-m", "dtorch_mpi", "info"], env=environment, cwd=cwd,
                          capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    *lines, settings = lines
    columns = head.index("running")
    return {line[:19].strip(): (line[19:columns].strip(), line[columns:])
            for line in lines} | {"settings": settings, "head": head}


def test_what_is_built_and_what_runs(tmp_path):
    told = info(tmp_path, ROOT, DTORCH_WORKERS="3", DTORCH_WRKERS="2")
    assert told["head"].split() == ["built", "against", "running"]
    built = built_against()
    assert built["torch"] == torch.__version__
    library = loaded_library()
    for name, running in {
        "dtorch-mpi": str(ROOT / "dtorch_mpi"), "Python": f"{platform.python_version()} (",
        "torch": torch.__version__, "MPI": f"{library.version} ({library.path})",
        "mpi4py": importlib.metadata.version("mpi4py"), "mpirun": f"({library.family})",
        "extensions": "can be imported", "MPI of extensions": "that of mpi4py",
        "h5py": h5py.version.version, "HDF5": h5py.version.hdf5_version,
    }.items():  # fmt: skip
        assert told[name][0] == built.get(name, "")
        assert running in told[name][1]
    assert told["settings"].startswith("settings in force: DTORCH_")
    assert "DTORCH_WORKERS=3" in told["settings"]
    assert "DTORCH_WRKERS=2 (no such setting)" in told["settings"]


@pytest.fixture
def broken(tmp_path):
    """A folder with the package without extensions, a torch that dies and an h5py that fails."""
    (tmp_path / "dtorch_mpi").mkdir()
    for path in (ROOT / "dtorch_mpi").iterdir():
        if path.suffix != ".so" and path.name not in ("build_record.py", "__pycache__"):
            (tmp_path / "dtorch_mpi" / path.name).symlink_to(path)
    # Were there none, an editable install of the package would be asked for it.
    (tmp_path / "dtorch_mpi" / "build_record.py").write_text("raise ImportError('not built')")
    for name, code in {"torch": "import os; os.abort()",
                       "h5py": "raise OSError('no libhdf5.so')"}.items():
        (tmp_path / f"{name}.py").write_text(code)
    return tmp_path


def test_nothing_works(broken, tmp_path):
    told = info("/", broken, MPI4PY_LIBMPI="/nowhere/libmpi.so", PATH="/nowhere")
    assert "built against: not recorded" in told["head"]
    assert told["torch"][1] == "failed: its process ended with SIGABRT"
    assert told["extensions"][1] == "failed: its process ended with SIGABRT"
    assert told["h5py"][1] == "failed: OSError: no libhdf5.so"
    assert told["MPI"][1].startswith("failed: RuntimeError: cannot load MPI library /nowhere/")
    assert told["mpirun"][1].startswith("failed: FileNotFoundError: no launcher")
    assert told["Slurm"][1] == "none: no srun on PATH"
    assert platform.python_version() in told["Python"][1]
