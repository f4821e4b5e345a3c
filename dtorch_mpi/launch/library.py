"""The MPI library that mpi4py uses, and the launcher that belongs to it."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple


class Library(NamedTuple):
    """`family` is "mpich" (MPICH, Intel, Cray, MVAPICH: one ABI), "openmpi" or "unknown".

    `version` is the library's own first line, `path` its file ("" when it cannot be told).
    """

    family: str
    version: str
    path: str


def loaded_library():
    """The Library mpi4py has loaded, or loads now, without initializing MPI.

    Raises ImportError with mpi4py's reason when there is no MPI.
    """
    import mpi4py

    before = mpi4py.rc.initialize
    mpi4py.rc.initialize = False
    try:
        from mpi4py import MPI
    finally:
        mpi4py.rc.initialize = before
    vendor = MPI.get_vendor()[0]
    version = MPI.Get_library_version().strip("\0\n ").splitlines()[0]
    return Library(family_of(vendor), " ".join(version.split()), _mapped_library())


def family_of(text):
    """The family that a vendor's name or a launcher's `--version` text speaks of."""
    text = text.lower()
    if any(word in text for word in ("open mpi", "openrte", "open-mpi", "prrte", "prte")):
        return "openmpi"
    if any(word in text for word in ("mpich", "hydra", "intel", "mvapich", "cray")):
        return "mpich"
    return "unknown"


def launcher_beside(library_path):
    """The mpirun installed with the library at this path, or None."""
    if not library_path:
        return None
    for prefix in Path(library_path).resolve().parents[1:4]:
        for name in ("mpirun", "mpiexec"):
            path = prefix / "bin" / name
            if path.is_file():
                return str(path)
    return None


def family_of_launcher(launcher):
    """The family an mpirun says it is of in its --version.

    Raises RuntimeError when it cannot be run.
    """
    try:
        done = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=30,
                              stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(
            f"{launcher} --version did not answer ({error}); name another launcher with "
            "--launcher") from error
    return family_of(done.stdout + done.stderr)


def launcher_on_path():
    return shutil.which("mpirun") or shutil.which("mpiexec")


def _mapped_library():
    """The libmpi in this process's memory map."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) == 6:
                path = fields[5].strip()
                name = path.rsplit("/", 1)[-1]
                if name.startswith(("libmpi.so", "libmpi_abi.so", "libmpich", "libmpi_cray")):
                    return path
    return ""
