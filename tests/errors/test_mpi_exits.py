"""How a job under mpirun ends: exit codes, what is told of a rank that dies, nothing left."""

import os
from pathlib import Path

import pytest
from launching import run_job

START = "import sys, torch, dtorch_mpi as dt\nfrom worker_kernels import die, slow\ndt.init()\n"


@pytest.fixture
def job(tmp_path):
    def run(body, **options):
        script = tmp_path / "script.py"
        script.write_text(START + body)
        ended = run_job(script, launcher="mpirun", workers=2, limit=60, **options)
        left = processes_of(script)
        assert not left, f"left behind: {left}\n{ended.out}\n{ended.err}"
        return ended

    return run


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


def test_good_end(job):
    ended = job("print((torch.ones(3, device='dtorch') + 1).sum().item())\n")
    assert (ended.code, ended.out, ended.err) == (0, "6.0\n", "")


def test_sys_exit_gives_the_jobs_code(job):
    ended = job("x = torch.ones(3, device='dtorch') + 1\nsys.exit(7)\n")
    assert ended.code == 7, ended.err


def test_exception_on_rank_0(job):
    ended = job(
        "x = torch.ones(3, device='dtorch') + 1\n"
        "raise ValueError('the user is wrong')\n"
    )
    assert ended.code != 0 and ended.seconds < 40
    assert "the user is wrong" in ended.err


def test_unread_failure(job):
    ended = job("y = torch.linalg.inv(torch.zeros(2, 2, device='dtorch'))\n")
    assert ended.code != 0
    assert "singular" in ended.err and "script.py:4 in <module>" in ended.err
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
        "dt.sync()\n"
        f"die(1, {number})\n"
        "dt.sync()\n"
    )
    assert ended.code != 0 and ended.seconds < 40
    assert "[dtorch-mpi] rank 2 of 3 on host" in ended.err, ended.err
    assert f"signal {number}" in ended.err
    assert "last operator: aten::" in ended.err and "script.py:" in ended.err


def test_interrupt(job):
    ended = job("x = slow(50)\nprint('waiting')\nx.to_torch()\n", interrupt_at="waiting")
    assert ended.code != 0 and ended.seconds < 15


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
