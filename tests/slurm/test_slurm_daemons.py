"""The tests' own Slurm leaves nothing behind, whatever becomes of the tests."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slurm_daemons

HOLDER = """\
import subprocess, sys, time
daemons = subprocess.Popen([sys.executable, sys.argv[1]], stdin=subprocess.PIPE, stdout=sys.stdout)
time.sleep(60)
"""


@pytest.mark.skipif(bool(slurm_daemons.what_is_missing()), reason="needs Slurm, as root")
def test_killed_tests_leave_no_cluster_behind():
    # As pytest-timeout ends pytest: without a word.
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, slurm_daemons.__file__],
                              stdout=subprocess.PIPE, text=True)  # fmt: skip
    word, conf = holder.stdout.readline().split()
    assert word == "ready"
    environment = os.environ | {"SLURM_CONF": conf}
    # A process that takes no notice of a SIGTERM, and one that has left its job's session.
    job = "trap '' TERM; setsid sleep 300 & sleep 301"
    subprocess.run(["sbatch", "--output=/dev/null", "--wrap", job], env=environment, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip

    def commands():
        return "\n".join(command for _, command in slurm_daemons.processes_of(conf))

    until = time.monotonic() + 30
    while not all(word in commands() for word in ("munged", "slurmctld", "slurmd -D -N n2",
                                                  "slurmstepd", "sleep 300", "sleep 301")):
        assert time.monotonic() < until, commands()
        time.sleep(0.05)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    until = time.monotonic() + 30
    while commands() or Path(conf).parent.exists():
        assert time.monotonic() < until, commands()
        time.sleep(0.05)
