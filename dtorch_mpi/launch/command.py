"""The command line that starts a job: `python -m dtorch_mpi launch -n N script.py`."""

import os
import shlex
import shutil
import sys

from dtorch_mpi.launch import environment, library, restarts


def find_launcher(name=None, variables=None):
    """The path of the launcher to use.

    `name` is "srun", "mpirun", a path, or None: srun inside a Slurm allocation, else the mpirun
    that belongs to the MPI library of mpi4py, else the one on PATH.

    Raises:
        FileNotFoundError: there is none.
    """
    if name == "srun" or (name is None and environment.in_slurm_allocation(variables)
                          and shutil.which("srun")):
        found = shutil.which("srun")
    elif name in (None, "mpirun"):
        found = library.launcher_beside(_library_path()) or library.launcher_on_path()
    else:
        found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(
            f"no launcher {name or 'mpirun'!r} found beside mpi4py's MPI library or on PATH; "
            "load an MPI module, or `pip install mpich`, or name one with --launcher PATH")
    return found


def launch_line(num_ranks, argv, launcher, family):
    """(command, extra environment variables) for `num_ranks` ranks running `argv`.

    Args:
        num_ranks: all ranks, the controller among them.
        argv: what `python -m dtorch_mpi run` shall run.
        launcher: path of srun or of an mpirun.
        family: "openmpi" or "mpich": of the launcher, or with srun of the library.

    Raises:
        ValueError: num_ranks < 1.
    """
    if num_ranks < 1:
        raise ValueError(f"got -n {num_ranks}, expected at least 1 rank")
    command, extra = [launcher], {}
    if os.path.basename(launcher) == "srun":
        plugin = os.environ.get("DTORCH_SRUN_MPI") or {"openmpi": "pmix"}.get(family, "pmi2")
        command += [f"--mpi={plugin}", "--kill-on-bad-exit=1"]
    elif family == "openmpi":
        # Open MPI binds each rank of a small job to one core, and a worker has several threads.
        command += ["--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            for prefix in ("OMPI", "PRTE"):
                extra[f"{prefix}_ALLOW_RUN_AS_ROOT"] = "1"
                extra[f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    command += ["-n", str(num_ranks), sys.executable, "-m", "dtorch_mpi", "run", *argv]
    return command, extra


def launch(num_ranks, argv, launcher=None, dry_run=False, max_restarts=0, min_workers=None):
    """Print the command and become it, so that its exit code and its signals are the launcher's.

    With dry_run it is printed only. With max_restarts this process stays, and starts the job again
    when it fails (restarts.run); it ends with the job's exit code.

    Raises:
        ValueError: a number that makes no sense.
        FileNotFoundError: there is no launcher.
        RuntimeError: in a rank of a job; of launchers within launchers some hang, and some fail.
    """
    inside = environment.detect()
    if inside is not None and inside.size > 1:
        raise RuntimeError(
            f"this process is rank {inside.rank} of {inside.size} already, started by "
            f"{inside.launcher}: use `python -m dtorch_mpi run` here, or launch from the shell")
    if max_restarts < 0:
        raise ValueError(f"got --max-restarts {max_restarts}, expected 0 or more")
    if min_workers is not None and not (max_restarts and 1 <= min_workers < num_ranks):
        raise ValueError(f"got --min-workers {min_workers}, expected 1 to {num_ranks - 1} (of -n "
                         f"{num_ranks} ranks the first runs the script), with --max-restarts")
    path = find_launcher(launcher)
    if os.path.basename(path) == "srun":
        family = library.loaded_library().family
    else:
        family = library.family_of_launcher(path)

    def shown_line(num_ranks):
        command, extra = launch_line(num_ranks, argv, path, family)
        shown = [f"{name}={value}" for name, value in extra.items()] + [shlex.join(command)]
        print("+ " + " ".join(shown), file=sys.stderr, flush=True)
        return command, extra

    if max_restarts and not dry_run:
        sys.exit(restarts.run(shown_line, num_ranks, max_restarts, min_workers))
    command, extra = shown_line(num_ranks)
    if not dry_run:
        os.execve(path, command, {**os.environ, **extra})


def _library_path():
    try:
        return library.loaded_library().path
    except (ImportError, RuntimeError):
        return ""
