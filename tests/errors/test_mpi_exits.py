"""How a job under mpirun ends: exit codes, what is told of a rank that dies, nothing left."""

import re

import pytest
from ending_jobs import FAULT, as_nodes, reports, run_to_its_end

START = """import stuck_kernels, torch, dtorch_mpi as dt
from worker_kernels import die, slow
dt.init()
"""


@pytest.fixture
def job(tmp_path):
    def run(body, **options):
        return run_to_its_end(tmp_path, START + body, **options)

    return run


def test_good_end(job):
    ended = job("print((torch.ones(3, device='dtorch') + 1).sum().item())\n")
    assert (ended.code, ended.out, ended.err) == (0, "6.0\n", "")


def test_sys_exit_gives_the_jobs_code(job):
    ended = job("x = torch.ones(3, device='dtorch') + 1\nsys.exit(7)\n")
    assert ended.code == 7, ended.err


def test_exception_on_rank_0_while_workers_are_busy(job):
    ended = job(
        "x = torch.ones(3, device='dtorch') + 1\n"
        "y = slow(50)\n"
        f"dt.sync_future()\n{FAULT}"
        "raise ValueError('the user is wrong')\n",
        workers=3, options=as_nodes("n1", "n2", ranks=2),
    )  # fmt: skip
    assert ended.code == 1 and ended.seconds < 15
    assert "script.py\", line 9, in <module>" in ended.err
    assert "ValueError: the user is wrong\n[dtorch-mpi] raised on rank 0 of 4 on host " in ended.err
    (told,) = reports(ended.err)
    assert re.search(r"last operator: aten::add .*issued at \S+script.py:5 in <module>", told), told


def test_unread_failure(job):
    ended = job("y = torch.linalg.inv(torch.zeros(2, 2, device='dtorch'))\n")
    assert ended.code != 0
    assert "singular" in ended.err and "script.py:5 in <module>" in ended.err
    assert "failed on worker 0 (rank 1) on " in ended.err


def test_workers_that_were_shut_down_do_not_come_again(job):
    ended = job(
        "dt.shutdown()\n"
        "try:\n"
        "    torch.ones(1, device='dtorch')\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    assert ended.code == 0 and "can't be started again" in ended.out


@pytest.mark.parametrize("number", [9, 11], ids=["killed", "segfault"])
def test_death_of_a_worker_is_told(job, number):
    ended = job(
        "x = torch.ones(3, device='dtorch').exp()\n"
        f"dt.sync()\n{FAULT}"
        f"die(1, {number})\n"
        "dt.sync()\n"
    )
    assert ended.code != 0 and ended.seconds < 10
    (told,) = reports(ended.err)
    assert told.startswith("rank 2 of 3 on host ") and f" died: killed by signal {number} " in told
    assert "; it was in kernel tests.die, issued at " in told
    assert "before it: aten::exp (record 2), issued at " in told and "script.py:5 in" in told


def test_worker_that_runs_out_of_memory(job):
    ended = job("""\
mesh = dt.init_device_mesh((2,))
dt.kernels.call("tests.limit_memory", [1, 64], sizes=[2], dtype=torch.float32, mesh=mesh,
                placements=[dt.Shard(0)])
x = dt.ones(1 << 28, mesh=mesh, placements=[dt.Shard(0)])
print(x.sum().item())
""")
    assert ended.code == 1
    assert "WorkerError: " in ended.err and "can't allocate memory" in ended.err
    assert "script.py:8 in <module>" in ended.err
    assert "failed on worker 1 (rank 2) on " in ended.err
    assert reports(ended.err) == []


def test_interrupt(job):
    ended = job("x = slow(50)\nprint('waiting')\nx.to_torch()\n", interrupt_at="waiting")
    assert ended.code == 130 and ended.seconds < 15
    assert "script.py\", line 7, in <module>" in ended.err
    (told,) = reports(ended.err)
    assert told.startswith("raised on rank 0 of 3 on host ")


def test_forked_child_that_ends_as_programs_do(job):
    ended = job("""
import os, time
x = torch.ones(3, device="dtorch")
child = os.fork()
if child == 0:
    sys.exit(5)
until = time.monotonic() + 20
while (found := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < until:
    time.sleep(0.05)
if found[0] == 0:
    os.kill(child, 9)
print(os.waitstatus_to_exitcode(found[1]) if found[0] else "hangs", x.sum().item())
""")
    assert (ended.code, ended.out) == (0, "5 3.0\n"), ended.err
