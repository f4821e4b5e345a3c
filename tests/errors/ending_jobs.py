"""Jobs that end badly: run them, see that nothing stays behind, and read what is told."""

import contextlib
import os
import shutil
import time
from pathlib import Path

from launching import run_job

from dtorch_mpi.launch.library import family_of_launcher

FAULT = "import os; open(os.path.join(os.path.dirname(__file__), 'fault'), 'w').close()\n"


def run_to_its_end(folder, text, launcher="mpirun", workers=2, **options):
    """Run a program of this text, which finds this folder's modules.

    Where it executes FAULT, the seconds that it takes to end count from there. Raises
    AssertionError if one of its processes stays behind.
    """
    script = folder / "script.py"
    script.write_text(f"import sys; sys.path.append({str(Path(__file__).parent)!r})\n{text}")
    ended = run_job(script, launcher=launcher, workers=workers, limit=60, **options)
    with contextlib.suppress(FileNotFoundError):
        ended.seconds = time.time() - (folder / "fault").stat().st_mtime
    # Launchers of other nodes end their ranks a moment after the first has left.
    until = time.monotonic() + 5
    while (left := processes_of(script)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left, f"left behind: {left}\n{ended.out}\n{ended.err}"
    return ended


def as_nodes(*names, ranks):
    """mpirun's options for so many ranks on each of several nodes, all of them this machine.

    Each gets a proxy of the launcher, and watchers of its own. Open MPI has no such thing: none.
    """
    if family_of_launcher(shutil.which("mpirun")) != "mpich":
        return []
    return ["-launcher", "fork", "-hosts", ",".join(names), "-ppn", str(ranks)]


def processes_of(script):
    """Command lines of live processes that run the script."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(script).encode() in words and int(entry.name) != os.getpid():
            found.append(words)
    return found


def reports(err):
    """The blocks that watchers wrote, without their marks."""
    found = []
    for line in err.splitlines():
        if not line.startswith("[dtorch-mpi] "):
            continue
        text = line.removeprefix("[dtorch-mpi] ")
        if not text.startswith("  ") or not found:
            found.append("")
        found[-1] += text + "\n"
    return found
