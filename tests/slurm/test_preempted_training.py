"""A training that Slurm takes its nodes from goes on where it was."""

import re

import pytest
from launching import ROOT, run_job

PROGRAM = ROOT / "tests" / "checkpoint" / "preempted_job.py"
STEPS = 30
TWO_NODES = "--nodes=2 --ntasks-per-node=2 --cpus-per-task=1"
ONE = "--nodes=1 --ntasks-per-node=1 --cpus-per-task=1"


def losses(text):
    return re.findall(r"^(?:0: )?(loss \d+ \S+)$", text, re.MULTILINE)


@pytest.mark.timeout(240)
def test_it_is_requeued_and_ends_with_the_same_bits(cluster, tmp_path):
    job = cluster.submit(tmp_path, TWO_NODES, "cpu.sbatch", PROGRAM, tmp_path, str(STEPS), "0.2")
    job.wait_until(lambda _: "0: loss 8 " in job.output())
    cluster.run("scancel", "--signal=USR1", job.number)
    job.start_again()
    facts = job.wait()
    assert (facts["JobState"], facts["ExitCode"], facts["Restarts"]) == ("COMPLETED", "0:0", "1"), (
        job.output())
    assert job.output().count("asked to stop by SIGUSR1") == 1
    assert "back to the queue, time 1 of at most 20" in job.output()
    assert "died" not in job.output()
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    whole = run_job(PROGRAM, undisturbed, STEPS, launcher="mpirun", workers=3)
    assert len(losses(whole.out)) == STEPS
    assert losses(job.output()) == losses(whole.out)


def test_it_leaves_before_its_time_is_up(cluster, tmp_path):
    job = cluster.submit(tmp_path, ONE + " --time=1", "cpu.sbatch", PROGRAM, tmp_path, str(STEPS),
                         MAX_REQUEUES="0")  # fmt: skip
    facts = job.wait()
    assert (facts["JobState"], facts["ExitCode"]) == ("FAILED", "85:0"), job.output()
    assert "asked to stop by the job's time, of which" in job.output()
    assert len(losses(job.output())) == 1
