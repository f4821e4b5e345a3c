"""`python -m dtorch_mpi info`: what was built, what runs, and what has been set.

Nothing of it may fail: each fact is found by itself, and has its error for a value. Facts for which
libraries are loaded are found in processes of their own, since a library that does not fit may end
the process, or never return.
"""

import importlib.metadata
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys

from dtorch_mpi import settings
from dtorch_mpi.built_against import built_against
from dtorch_mpi.launch import environment, library
from dtorch_mpi.version import __version__

LIMIT = 120  # seconds for the facts of one process


def _version_of(distribution):
    return lambda: importlib.metadata.version(distribution)


def _slurm():
    srun = shutil.which("srun")
    if srun is None:
        return "none: no srun on PATH"
    said = subprocess.run([srun, "--version"], capture_output=True, text=True, timeout=10)
    if said.returncode != 0:
        return f"{srun}, which does not work: {said.stderr.strip().splitlines()[-1]}"
    job = os.environ.get("SLURM_JOB_ID")
    return f"{said.stdout.strip()} ({srun}){f', in job {job}' if job else ''}"


def _launcher():
    launch = environment.detect()
    if launch is None:
        return "none: this process was started directly"
    return f"{launch.launcher}, rank {launch.rank} of {launch.size}"


def _cpus():
    from dtorch_mpi.launch.cpus import affinity, ranges

    return f"{ranges(affinity())} of {os.cpu_count()}"


def _shared_memory():
    memory = os.statvfs("/dev/shm")
    free, size = (blocks * memory.f_frsize >> 20 for blocks in (memory.f_bavail, memory.f_blocks))
    return f"{free} of {size} MiB free"


def _settings():
    unknown = settings.unknown()
    known = [f"{name}={value}" for name, value in sorted(os.environ.items())
             if name in settings.VARIABLES or name in ("OMP_NUM_THREADS", "MPI4PY_LIBMPI")]
    known += [f"{name}={os.environ[name]} (no such setting)" for name in unknown]
    return ", ".join(known) or "none"


def _torch():
    import torch

    return f"{torch.__version__} ({os.path.dirname(torch.__file__)})"


def _cuda():
    import torch

    if torch.version.cuda is None:
        return f"none: torch {torch.__version__} is built without"
    torch.cuda.init()
    major, minor = divmod(torch._C._cuda_getDriverVersion() // 10, 100)
    return f"{torch.version.cuda}, driver for {major}.{minor}"


def _nccl():
    import torch

    if not torch.distributed.is_nccl_available():
        return f"none: torch {torch.__version__} is built without"
    return ".".join(map(str, torch.cuda.nccl.version()))


def _devices():
    import torch

    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return ", ".join(f"cuda:{index} {gpu.name} {gpu.total_memory >> 20} MiB"
                     for index, gpu in enumerate(gpus)) or "cpu"


def _extensions():
    import importlib

    importlib.reload(sys.modules["dtorch_mpi"])
    return "can be imported"


def _mpi_library():
    loaded = library.loaded_library()
    return f"{loaded.version} ({loaded.path or 'path unknown'})"


def _mpi_standard():
    library.loaded_library()
    from mpi4py import MPI

    return ".".join(map(str, MPI.Get_version()))


def _mpirun():
    from dtorch_mpi.launch.command import find_launcher

    path = find_launcher("mpirun")
    return f"{path} ({library.family_of_launcher(path)})"


def _mpi_of_extensions():
    from dtorch_mpi.launch.guard import check_extensions

    _extensions()
    check_extensions()
    return "that of mpi4py"


def _h5py():
    import h5py

    return f"{h5py.version.version}, {'with' if h5py.get_config().mpi else 'without'} MPI"


def _hdf5():
    import h5py

    return h5py.version.hdf5_version


# By process: (name, function). The first needs Python alone, and is this process.
FACTS = {
    "": {
        "dtorch-mpi": lambda: f"{__version__} ({os.path.dirname(os.path.abspath(__file__))})",
        "Python": lambda: f"{platform.python_version()} ({sys.executable})",
        "system": lambda: f"{platform.platform()}, {platform.machine()}",
        "host": socket.gethostname,
        "CPUs": _cpus,
        "/dev/shm": _shared_memory,
        "numpy": _version_of("numpy"),
        "mpi4py": _version_of("mpi4py"),
        "Slurm": _slurm,
        "started by": _launcher,
        "settings": _settings,
    },
    "torch": {"torch": _torch, "CUDA": _cuda, "NCCL": _nccl, "devices": _devices,
              "extensions": _extensions},
    "mpi": {"MPI": _mpi_library, "MPI standard": _mpi_standard, "mpirun": _mpirun,
            "MPI of extensions": _mpi_of_extensions},
    "h5py": {"h5py": _h5py, "HDF5": _hdf5},
}  # fmt: skip
ORDER = ["dtorch-mpi", "Python", "torch", "CUDA", "NCCL", "MPI", "MPI standard", "mpi4py", "mpirun",
         "extensions", "MPI of extensions", "compiler", "mpicc", "Cython", "h5py", "HDF5", "numpy",
         "system", "host", "CPUs", "/dev/shm", "devices", "Slurm", "started by"]


def value_of(fact):
    """What the function gives, or its error."""
    try:
        return " ".join(str(fact()).split())
    except BaseException as error:
        return f"failed: {type(error).__name__}: {' '.join(str(error).split())}"


def facts():
    """A dict of text by subject: what runs here."""
    processes = {
        group: subprocess.Popen([sys.executable, "-m", "dtorch_mpi", "info", "--group", group],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                stdin=subprocess.DEVNULL, errors="replace")
        for group in FACTS if group}
    found = {name: value_of(fact) for name, fact in FACTS[""].items()}
    for group, process in processes.items():
        found |= _answers(process, FACTS[group])
    return found


def _answers(process, names):
    """What a process of tell_group() has told; for what it has not, how it ended."""
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"\nno answer within {LIMIT} s"
    code = process.returncode
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    end = ": ".join([f"failed: its process ended with {how}", *err.strip().splitlines()[-1:]])
    told = [line.split("\t", 1)[1] for line in out.splitlines() if line.startswith("fact\t")]
    return dict.fromkeys(names, end) | dict(map(json.loads, told))


def tell_group(group):
    """Print the facts of one group for facts(), each as soon as it is known."""
    for name, fact in FACTS[group].items():
        print("fact\t" + json.dumps([name, value_of(fact)]), flush=True)


def text():
    """The whole report: a line for each fact, with what was built against and what runs."""
    running = facts()
    built = value_of(built_against) and built_against()
    settings_of_build = built.pop("settings", "none")
    rows = [("", "built against" if built else "built against: not recorded", "running")]
    rows += [(name, built.get(name, ""), running.get(name, ""))
             for name in ORDER if name in running or name in built]
    widths = [max(len(row[column]) for row in rows) + 2 for column in (0, 1)]
    lines = [f"{row[0]:{widths[0]}}{row[1]:{widths[1]}}{row[2]}".rstrip() for row in rows]
    lines += [f"settings in force: {running['settings']}"]
    if settings_of_build != "none":
        lines += [f"settings of the build: {settings_of_build}"]
    return "\n".join(lines)


def main(group=None):
    if group:
        tell_group(group)
        return
    launch = environment.detect()
    if launch is None or launch.rank == 0:
        print(text())
