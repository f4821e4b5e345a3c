"""The job scripts in slurm/, submitted to a real Slurm."""

import json
import os
import re
import time
from collections import Counter

import pytest

# Ranks import torch, some of them twice, and a busy machine takes its time.
pytestmark = pytest.mark.timeout(240)

# As many CPUs as any machine has; importing torch takes each rank seconds.
ONE = "--nodes=1 --ntasks-per-node=1 --cpus-per-task=1"
TWO = "--nodes=1 --ntasks-per-node=2 --cpus-per-task=1"  # a controller and a worker
TWO_NODES = "--nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --gpus-per-node=2"

TELL = "from rank_kernels import tell\nprint('workers', tell())\n"
ENDS_WITH = """\
import os, sys, torch
import dtorch_mpi as dt
from rank_kernels import leave_late
leave_late({late})
print("start", os.environ.get("SLURM_RESTART_COUNT", 0), sys.argv[1:],
      torch.ones(4, device="dtorch").sum().item())
sys.exit({codes}[int(os.environ.get("SLURM_RESTART_COUNT", 0))])
"""


def told(output):
    """The facts that each rank printed, by rank; every line has its rank's label."""
    lines = re.findall(r"^(\d+): facts (\{.*\})$", output, re.MULTILINE)
    facts = [json.loads(line) for _, line in lines]
    assert [int(label) for label, _ in lines] == [of["rank"] for of in facts]
    return {of["rank"]: of for of in facts}


def test_two_nodes_make_one_job(submit):
    job = submit(TELL, TWO_NODES, "multi_node_gpu.sbatch")
    facts = job.wait()
    assert (facts["JobState"], facts["ExitCode"]) == ("COMPLETED", "0:0"), job.output()
    ranks = told(job.output())
    assert sorted(ranks) == [0, 1, 2, 3]
    assert "0: workers 3\n" in job.output()
    assert [ranks[rank]["worker"] for rank in range(4)] == [None, 0, 1, 2]
    assert [ranks[rank]["node"] for rank in range(4)] == ["n1", "n1", "n2", "n2"]
    for rank in ranks.values():
        # All GPUs of the node, for each of its ranks, and a log that takes no progress bars.
        assert (rank["gpus"], rank["terminal"], rank["file_locking"]) == ("0,1", False, "FALSE")
    # Bound to CPUs of their own, workers have as many threads as those.
    assert ranks[0]["cpus"] != ranks[1]["cpus"] and ranks[2]["cpus"] != ranks[3]["cpus"]
    assert [ranks[rank]["threads"] for rank in (1, 2, 3)] == [1, 1, 1]


def test_cpus_per_task_reach_the_ranks(submit):
    # One rank, the program and its worker; without SRUN_CPUS_PER_TASK it would be bound to one CPU.
    job = submit(TELL, "--nodes=1 --ntasks-per-node=1 --cpus-per-task=2")
    assert job.wait()["JobState"] == "COMPLETED", job.output()
    (line,) = [of for of in map(json.loads, re.findall(r"facts (.*)", job.output()))
               if of["worker"] == 0]  # fmt: skip
    assert (len(line["cpus"]), line["threads"]) == (2, 2)


def test_code_85_is_requeued_and_goes_on_in_the_same_log(submit):
    # The worker is still there when rank 0 leaves, and srun ends it; its end is not the job's code.
    program = ENDS_WITH.format(codes=[85, 0], late=3)
    job = submit(program, TWO + " --gpus-per-node=2", "single_node.sbatch")
    job.start_again()
    facts = job.wait()
    assert (facts["JobState"], facts["ExitCode"], facts["Restarts"]) == ("COMPLETED", "0:0", "1"), (
        job.output())
    assert re.findall("start .*", job.output()) == ["start 0 [] 4.0", "start 1 [] 4.0"]
    assert "back to the queue, time 1 of at most 20" in job.output()


def test_it_is_requeued_no_more_often_than_told(submit):
    job = submit(ENDS_WITH.format(codes=[85], late=0), ONE, MAX_REQUEUES="0")
    facts = job.wait()
    assert (facts["JobState"], facts["ExitCode"], facts["Restarts"]) == ("FAILED", "85:0", "0")
    assert "not requeued: that has been done 0 times, and max_requeues is 0" in job.output()


def test_a_failing_program_keeps_its_code(submit):
    job = submit(ENDS_WITH.format(codes=[3], late=0), ONE)
    facts = job.wait()
    assert (facts["JobState"], facts["ExitCode"], facts["Restarts"]) == ("FAILED", "3:0", "0")
    assert "queue" not in job.output()


def test_ranks_that_do_not_meet_are_caught(submit):
    job = submit("print('the program runs')\n", TWO, DTORCH_SRUN_MPI="none")
    facts = job.wait()
    # 1, or 143 of a rank that was ended for the other's 1.
    assert facts["JobState"] == "FAILED" and facts["ExitCode"] in ("1:0", "143:0"), job.output()
    assert "srun started 2 processes" in job.output()
    assert "srun --mpi=pmi2" in job.output()
    assert "the program runs" not in job.output()


def test_usr1_reaches_every_rank_and_a_killed_job_can_start_again(submit, cluster):
    before = cluster.processes()
    job = submit(
        "import os, time\nfrom dtorch_mpi.watching.death_watch import shared_memory_of\n"
        "from rank_kernels import show_signals\n"
        "print('memory', *shared_memory_of(os.getpid()))\n"
        "print('ready', show_signals())\ntime.sleep(120)\n",
        TWO,
    )  # fmt: skip
    job.wait_until(lambda _: "0: ready 1\n" in job.output())
    cluster.run("scancel", "--signal=USR1", job.number)

    def signalled():
        return Counter(re.findall(r"^(\d): Stack \(most", job.output(), re.MULTILINE))

    job.wait_until(lambda _: signalled() == {"0": 1, "1": 1}, limit=20)
    assert job.facts()["JobState"] == "RUNNING"
    # As where another job has its nodes: all are killed, and start again with the ids of job and
    # step, after which MPICH names its shared memory. What is left there may hinder the new ones.
    cluster.run("scontrol", "requeue", job.number)
    job.start_again()
    job.wait_until(lambda _: job.output().count("0: ready 1\n") == 2)
    cluster.run("scancel", job.number)
    assert job.wait(limit=20)["JobState"] == "CANCELLED"
    until = time.monotonic() + 10  # of which watchers take up to two
    while left := sorted(set(cluster.processes()) - set(before)):
        assert time.monotonic() < until, left
        time.sleep(0.1)
    memory = tuple(re.search("0: memory (.*)", job.output())[1].split())
    assert memory and not [name for name in os.listdir("/dev/shm") if name.startswith(memory)]


def test_without_a_program_it_says_what_is_missing(cluster, tmp_path):
    job = cluster.submit(tmp_path, TWO, "cpu.sbatch")
    facts = job.wait(limit=10)
    assert (facts["JobState"], facts["ExitCode"]) == ("FAILED", "2:0")
    assert "sbatch slurm/cpu.sbatch train.py" in job.output()


