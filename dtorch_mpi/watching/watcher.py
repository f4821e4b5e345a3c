"""Start the small detached process that tells how this rank died (death_watch.py).

The launcher may kill every rank within milliseconds of one dying, so no rank can be relied on
to tell. A watcher is a process of its own session, outside the launcher's reach.
"""

import faulthandler
import fcntl
import os
import shlex
import socket
import stat
import subprocess
import sys
import time

from dtorch_mpi.watching import death_hub, death_watch
from dtorch_mpi.watching.process_end import hold_mark
from dtorch_mpi.watching.rank_watchdog import STACKS_SIGNAL

# A folder of an ended job younger than this, in seconds, may belong to a rank just starting.
STALE_AGE = 60

# The package without its __init__, which imports torch: a watcher starts in 20 ms and is small.
PROGRAM = """\
import sys
package = type(sys)("dtorch_mpi")
package.__path__ = [sys.argv[1]]
sys.modules["dtorch_mpi"] = package
from dtorch_mpi.watching.death_watch import watch
watch(sys.argv[2], *map(int, sys.argv[3:6]), sys.argv[6], *map(int, sys.argv[7:9]), sys.argv[9],
      *map(int, sys.argv[10:12]), *sys.argv[12:14], int(sys.argv[14]))
"""

LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prte"}


def job_folder(alone=False):
    """Make this job's folder on this node, the same for all its ranks; returns its path or None.

    It lies in /dev/shm, else in TMPDIR, else in /tmp, and is named after user, job and launcher;
    with `alone` (no launcher) after this process. None when none of them can be written.
    Folders that ended jobs left behind are removed.
    """
    variables = os.environ
    job = variables.get("SLURM_JOB_ID", "")
    if job and variables.get("SLURM_STEP_ID"):
        job += "." + variables["SLURM_STEP_ID"]
    job = job or variables.get("PMIX_NAMESPACE") or variables.get("PMI_JOBID") or "job"
    job = "".join(c if c.isalnum() or c in "._-" else "_" for c in job)
    launcher = None if alone else _launcher_on_node()
    name = f"dtorch-{os.getuid()}-{job}-{launcher or os.getpid()}"
    for base in dict.fromkeys(("/dev/shm", variables.get("TMPDIR") or "/tmp", "/tmp")):
        path = os.path.join(base, name)
        try:
            _remove_stale(base)
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError:
            continue
        if os.lstat(path).st_uid == os.getuid():
            return path
    return None


def write_stacks(record_path):
    """Have this process write its Python stacks to a file when its watcher asks for them.

    Returns the file's descriptor, which stays open.
    """
    file = open(death_watch.stacks_of(record_path), "w")  # noqa: SIM115 -- faulthandler keeps it
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True)
    return file.fileno()


def meet_at_hub(comm, host):
    """Let the watchers of a job on several nodes find rank 0's: (descriptor, address, token).

    comm: all ranks, which call this together. The address is empty where rank 0's host has none
    that this one knows.
    """
    fd, port, token = -1, 0, ""
    if comm.rank == 0:
        fd, port = death_hub.open_listener()
        token = death_hub.new_token()
    hub_host, port, token = comm.bcast((host, port, token))
    if comm.rank == 0:
        return fd, "", token
    try:
        return -1, f"{socket.gethostbyname(hub_host)}:{port}", token
    except OSError:
        return -1, "", ""


def start(record_path, *, pid, rank, world, host, stderr_fd=2, watchdog_seconds=0, hub=None,
          num_nodes=1):
    """Start the watcher of process `pid`; returns when it is watching (some 25 ms).

    record_path is rank-R.record in job_folder(), or None where no file could be made; then only
    the way of dying can be told. It writes to the launcher's own stderr when that is on this
    node, else to stderr_fd, else to a file <job>.crash.log in the current folder. It ends the
    process should that outlive its launcher, or be a worker that has been stuck for
    watchdog_seconds (0: never). hub: what meet_at_hub() returned, where there are several
    num_nodes. Raises RuntimeError when it does not start.
    """
    job = os.path.basename(os.path.dirname(record_path)) if record_path else f"dtorch-{pid}"
    crash_log = os.path.join(os.getcwd(), f"{job}.crash.log")
    if record_path:
        hold_mark(death_watch.mark_of(record_path))
    hub_fd, hub_address, token = hub or (-1, "", "")
    launcher_fd = _launcher_stderr()
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = [sys.executable, "-I", "-S", "-E", "-c", PROGRAM, package, record_path or "",
               str(pid), str(rank), str(world), host, str(_launcher_on_node() or 0),
               str(launcher_fd), crash_log, str(watchdog_seconds),
               str(hub_fd), hub_address, token, str(num_nodes)]
    passed = [fd for fd in (launcher_fd, hub_fd) if fd >= 0]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr_fd,
            cwd="/", start_new_session=True, pass_fds=passed)
    finally:
        for fd in passed:
            os.close(fd)
    if done.returncode != 0:
        raise RuntimeError(
            f"the watcher of rank {rank} did not start: {shlex.join(command)} ended with code "
            f"{done.returncode}; its message is on stderr")


def _ancestors():
    """(pid, command name) of each process above this one, nearest first."""
    pid = os.getppid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat") as file:
                text = file.read()
        except OSError:
            return
        yield pid, text[text.index("(") + 1:text.rindex(")")]
        pid = int(text[text.rindex(")") + 2:].split()[1])


def _launcher_on_node():
    """The pid of the process that all ranks of this node descend from, or None."""
    daemons = {"hydra_pmi_proxy", "slurmstepd", "orted", "prted", "palsd"} | LAUNCHERS
    return next((pid for pid, name in _ancestors() if name in daemons), None)


def _launcher_stderr():
    """The launcher's own stderr as a new descriptor, or -1.

    A rank's stderr is a pipe to the launcher, lost when the launcher goes first.
    """
    pid = next((pid for pid, name in _ancestors() if name in LAUNCHERS), None)
    if pid is None:
        return -1
    path = f"/proc/{pid}/fd/2"
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            # Opened anew, a file has an offset of its own, and we would overwrite each other.
            return _borrow_descriptor(pid, 2)
        return os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return -1


def _borrow_descriptor(pid, fd):
    import ctypes

    pidfd_getfd = 438
    pidfd = os.pidfd_open(pid)
    try:
        return ctypes.CDLL(None).syscall(pidfd_getfd, pidfd, fd, 0)
    finally:
        os.close(pidfd)


def _remove_stale(base):
    prefix = f"dtorch-{os.getuid()}-"
    for name in os.listdir(base):
        path = os.path.join(base, name)
        if not name.startswith(prefix):
            continue
        try:
            if time.time() - os.stat(path).st_mtime < STALE_AGE:
                continue
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            death_watch.remove_folder(path)
        except OSError:
            pass  # its job is alive
        finally:
            os.close(fd)
