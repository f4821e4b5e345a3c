"""The MPI library that mpi4py uses, and the launcher that belongs to it."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple


class Library(NamedTuple):
    """`family` is "mpich" (MPICH, Intel, Cray, MVAPICH: one ABI), "openmpi" or "unknown".

    `version` is the library's own first line, `path` its file ("" when it cannot be told).
    `meets` has the names of the protocols by which its ranks can find each other, as far as known:
    "pmi" (mpirun of MPICH, srun --mpi=pmi2), "pmix" (mpirun of Open MPI, srun --mpi=pmix).
    """

    family: str
    version: str
    path: str
    meets: frozenset[str] = frozenset(("pmi", "pmix"))


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
    text = MPI.Get_library_version().strip("\0\n ")
    # Open MPI goes on with commas, about whose package it is.
    version = " ".join(text.splitlines()[0].split(",")[0].replace("Version:", "").split())
    return Library(family_of(vendor), version, file_of_mpi(MPI), _protocols(text))


def _protocols(text):
    # MPICH says how it was configured, and without --with-pmix it ends the process where it finds
    # a server of PMIx only. Others that share its ABI don't say.
    if "MPICH configure:" in text and "pmix" not in text:
        return frozenset(("pmi",))
    return frozenset(("pmi", "pmix"))


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


def file_of_mpi(module):
    """The file of the MPI library that an extension module's calls go to; "" if there is none."""
    class Place(ctypes.Structure):
        _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                    ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]

    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Place)]
    place = Place()
    function = getattr(ctypes.CDLL(module.__file__), "MPI_Init", None)
    if function is None or not dladdr(ctypes.cast(function, ctypes.c_void_p), place):
        return ""
    return os.fsdecode(place.file)
