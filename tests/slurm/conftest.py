import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

import slurm_daemons  # noqa: E402

ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}


class Job:
    """A job that was submitted with sbatch."""

    def __init__(self, cluster, number, output):
        self.number = number
        self._cluster = cluster
        self._output = output

    def facts(self):
        """What `scontrol show job` says of it: {"JobState": ..., "ExitCode": ..., ...}."""
        text = self._cluster.run("scontrol", "show", "job", "--oneliner", self.number)
        return dict(field.split("=", 1) for field in text.split() if "=" in field)

    def output(self):
        return self._output.read_text() if self._output.exists() else ""

    def wait(self, *states, limit=90):
        """Wait until it is in one of the states (at an end, unless told); returns its facts()."""
        return self.wait_until(lambda facts: facts["JobState"] in (states or ENDED), limit)

    def wait_until(self, reached, limit=90):
        """Wait until `reached(facts())`; returns those facts. An AssertionError has the log."""
        until = time.monotonic() + limit
        while not reached(facts := self.facts()):
            if time.monotonic() > until or facts["JobState"] in ENDED:
                raise AssertionError(f"not so by its end or in {limit} s: {facts}\n{self.output()}")
            time.sleep(0.1)
        return facts

    def start_again(self):
        """Spare it the two minutes that Slurm lets a requeued job wait."""
        self.wait_until(lambda facts: (facts["JobState"], facts["Restarts"]) == ("PENDING", "1"))
        # They are there for a reason. What serves the old steps must have gone, and the node
        # refuses credentials that are no newer, in whole seconds, than the ones it has revoked.
        steps = f"slurmstepd: [{self.number}."
        self.wait_until(lambda _: not any(steps in of for _, of in self._cluster.processes()))
        time.sleep(2)
        self._cluster.run("scontrol", "update", f"JobId={self.number}", "StartTime=now")


class Cluster:
    """The Slurm that the tests of this session share."""

    def __init__(self, conf):
        self.conf = conf
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("SLURM_", "SBATCH_", "SRUN_", "OMP_"))}
        paths = [FOLDER / "each_rank", ROOT, *filter(None, [kept.get("PYTHONPATH")])]
        self.environment = kept | {
            "SLURM_CONF": self.conf,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]]),
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONFAULTHANDLER": "1",
        }  # fmt: skip

    def run(self, *command, cwd=None, **settings):
        """The stdout of a command of Slurm's; AssertionError if it fails."""
        done = subprocess.run(command, env=self.environment | settings, cwd=cwd, text=True,
                              capture_output=True, timeout=30)  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, folder, options, script, *arguments, **settings):
        """Submit one of the project's job scripts, as a user does from a folder of his own."""
        number = self.run("sbatch", "--parsable", *options.split(), str(ROOT / "slurm" / script),
                          *arguments, cwd=folder, **settings).strip()  # fmt: skip
        return Job(self, number, folder / f"dtorch-{number}.out")

    def processes(self):
        """(pid, command line) of the processes of its daemons and jobs."""
        return slurm_daemons.processes_of(self.conf)


@pytest.fixture(scope="session")
def cluster():
    """A real Slurm with two nodes on this machine; where it can't be had, tests are skipped."""
    if missing := slurm_daemons.what_is_missing():
        pytest.skip(f"needs Slurm: {missing}")
    daemons = subprocess.Popen(
        [sys.executable, slurm_daemons.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        word, _, conf = daemons.stdout.readline().rstrip("\n").partition(" ")
        if word != "ready":
            pytest.fail(f"Slurm did not start: {word} {conf}\n{daemons.stdout.read()}",
                        pytrace=False)  # fmt: skip
        yield Cluster(conf)
    finally:
        daemons.stdin.close()
        daemons.wait()


@pytest.fixture
def submit(cluster, tmp_path):
    """submit(body, options="", script="cpu.sbatch", **environment): a program as a Job."""

    def submit(body, options="", script="cpu.sbatch", **settings):
        (tmp_path / "program.py").write_text(body)
        return cluster.submit(tmp_path, options, script, "program.py", **settings)

    return submit
