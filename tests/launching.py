"""Runs a script as a job of its own: worker threads of one process, or ranks under mpirun."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass
class Ended:
    """How a job ended. seconds: from the signal, if one was sent, else from its start."""

    code: int
    out: str
    err: str
    seconds: float


def command_line(arguments, launcher, workers, python=sys.executable, options=()):
    if launcher == "thread":
        return [python, *arguments]
    if launcher == "mpirun":
        return ["mpirun", *options, "-n", str(workers + 1), python, *arguments]
    raise ValueError(f"launcher is {launcher!r}: expected thread or mpirun")


def run_job(*arguments, launcher="thread", workers=1, home=None, settings=None, limit=60,
            interrupt_at=None, python=sys.executable, options=()):
    """Run `python arguments...` as a job and wait for its end.

    home: where values come back (DTORCH_HOME). settings: more of the environment. limit:
    seconds; a job that takes longer is made to print its stacks, killed, and AssertionError
    raised. interrupt_at: text on its stdout upon which it is sent SIGINT. python: what is run.
    options: of mpirun.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **(settings or {})
    }  # fmt: skip
    environment.pop("DTORCH_WORKERS", None)
    with simulated_gpus(environment):
        return _run(arguments, launcher, workers, home, limit, interrupt_at, python, options,
                    environment)


@contextlib.contextmanager
def simulated_gpus(environment):
    """Has a job's ranks find simulated GPUs, if it is to have them; raises their violations."""
    if "SIMULATED_GPUS" not in environment:
        yield
        return
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "tests" / "simulated_gpu" / "site"), environment["PYTHONPATH"]])
    with tempfile.NamedTemporaryFile("r") as report:
        environment["SIMULATED_GPU_REPORT"] = report.name
        environment.setdefault("DTORCH_LOG", "error")  # else: that these have no NCCL
        yield
        found = report.read()
        assert not found, found


def _run(arguments, launcher, workers, home, limit, interrupt_at, python, options, environment):
    if launcher == "thread":
        environment["DTORCH_WORKERS"] = str(workers)
    if home is not None:
        environment["DTORCH_HOME"] = home
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        job = subprocess.Popen(
            command_line([str(word) for word in arguments], launcher, workers, python, options),
            stdout=out, stderr=err, env=environment, cwd=ROOT, start_new_session=True,
        )  # fmt: skip

        def text_of(file):
            file.seek(0)
            return file.read()

        began = time.monotonic()
        try:
            if interrupt_at is not None:
                while interrupt_at not in text_of(out) and job.poll() is None:
                    if time.monotonic() - began > limit:
                        raise subprocess.TimeoutExpired(job.args, limit)
                    time.sleep(0.02)
                began = time.monotonic()
                job.send_signal(signal.SIGINT)
            job.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGABRT)  # faulthandler prints the stacks
            time.sleep(1)
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            raise AssertionError(
                f"the job did not end within {limit} s\n--- stdout\n{text_of(out)}\n"
                f"--- stderr\n{text_of(err)}"
            ) from None
        return Ended(job.returncode, text_of(out), text_of(err), time.monotonic() - began)


def run_tests(*paths, **options):
    """Run test files in a job of its own; raises AssertionError with the output if any fails."""
    ended = run_job("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *paths, **options)
    assert ended.code == 0, f"exit code {ended.code}\n{ended.out}\n{ended.err}"
    return ended
