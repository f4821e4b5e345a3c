"""Start a job again when it fails: `python -m dtorch_mpi launch --max-restarts K`."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time

from dtorch_mpi.launch.allocation import REQUEUE_CODE

# How a job ends that need not be started again: well; with a usage error; checkpointed and to be
# requeued; by Ctrl-C.
FINAL_CODES = (0, 2, REQUEUE_CODE, 130)
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1,
             signal.SIGUSR2)
# After these nothing is started again.
STOPPING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
# How long the watchers may take to say who died, once the launcher has ended.
WATCHERS_SECONDS = 2.0
SENT_BY_KERNEL = 0x80  # SI_KERNEL: by the terminal, to all processes in front


def run(line_of, num_ranks, max_restarts, min_workers=None):
    """Run a job until it ends well, or has been started again max_restarts times.

    line_of: a function that gives (command, extra environment variables) for a number of ranks.
    min_workers: each time that a worker's process died, the job starts again with one rank less,
    down to this many ranks beside rank 0; None: always with num_ranks. Returns the last exit code,
    128 + N for signal N.
    """
    restarts = 0
    while True:
        with DeathsFile() as deaths:
            command, extra = line_of(num_ranks)
            variables = {**os.environ, **extra, DeathsFile.VARIABLE: deaths.path}
            code, was_stopped = _run_once(command, variables)
            if was_stopped or code in FINAL_CODES or restarts == max_restarts:
                return code
            death = deaths.first()
        restarts += 1
        why = f"exit code {code}"
        if death is not None:
            why = f"rank {death.rank}: {death.text}"
            if min_workers is not None and death.rank > 0:
                num_ranks = max(num_ranks - 1, min_workers + 1)
        print(f"[dtorch-mpi] the job failed ({why}): restart {restarts} of {max_restarts}, with "
              f"{num_ranks} ranks", file=sys.stderr, flush=True)  # fmt: skip


def _run_once(command, variables):
    """(exit code, whether we were told to stop) of a child that gets our signals."""
    awaited = {*PASSED_ON, signal.SIGCHLD}
    # Ours wait for sigwaitinfo() from here on, so none is lost between two looks.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    libc = ctypes.CDLL(None)

    def prepare():
        libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: no launcher may outlive us
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    child = subprocess.Popen(command, env=variables, preexec_fn=prepare)  # noqa: PLW1509
    was_stopped = False
    try:
        while child.poll() is None:
            came = signal.sigwaitinfo(awaited)
            if came.si_signo == signal.SIGCHLD:
                continue
            was_stopped = was_stopped or came.si_signo in STOPPING
            if came.si_code != SENT_BY_KERNEL:  # else the launcher has it as well
                child.send_signal(came.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode, was_stopped


class Death:
    """What a watcher says: when (the clock of its host), which rank, whether by itself, how."""

    def __init__(self, line):
        when, rank, own, self.text = line.split(" ", 3)
        self.when, self.rank, self.own = float(when), int(rank), own == "1"


class DeathsFile:
    """A file to which the watchers of all nodes add a line about the first death there.

    It lies in the current folder, which the nodes of a job mostly share. Where they do not, only
    this node's watchers are heard.
    """

    VARIABLE = "DTORCH_DEATHS_FILE"

    def __enter__(self):
        folder = os.getcwd() if os.access(".", os.W_OK) else tempfile.gettempdir()
        handle, self.path = tempfile.mkstemp(prefix=".dtorch-deaths-", dir=folder)
        os.close(handle)
        return self

    def __exit__(self, *error):
        os.unlink(self.path)

    def first(self):
        """The death that was the cause of the others, or None if no process died."""
        until = time.monotonic() + WATCHERS_SECONDS
        while os.path.getsize(self.path) == 0:
            if time.monotonic() > until:
                return None
            time.sleep(0.05)
        time.sleep(0.5)  # for the other nodes' watchers
        with open(self.path, errors="replace") as file:
            deaths = [Death(line) for line in file.read().splitlines()]
        return min(deaths, key=lambda death: (not death.own, death.when))
