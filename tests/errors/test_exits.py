"""How a job ends: its exit code, its last words, and that it does."""

import signal

import pytest
from launching import run_job

START = "import sys, torch, dtorch_mpi as dt\ndt.init()\n"


@pytest.fixture
def job(tmp_path):
    def run(body, **options):
        script = tmp_path / "script.py"
        script.write_text(START + body)
        return run_job(script, **options)

    return run


@pytest.mark.parametrize("workers", [1, 3])
def test_unread_failure_makes_the_exit_code_non_zero(job, workers):
    ended = job(
        "x = torch.zeros(2, 2, device='dtorch')\n"
        "y = torch.linalg.inv(x)\n"
        "print('end')\n",
        workers=workers,
    )  # fmt: skip
    assert ended.code == 1 and ended.out == "end\n"
    assert "singular" in ended.err and "script.py:4 in <module>" in ended.err
    assert "nobody read its result" in ended.err


def test_failure_that_was_caught_is_no_failure_of_the_job(job):
    ended = job(
        "y = torch.linalg.inv(torch.zeros(2, 2, device='dtorch'))\n"
        "try:\n"
        "    y.to_torch()\n"
        "except dt.WorkerError as error:\n"
        "    print(error.worker)\n"
    )
    assert (ended.code, ended.out, ended.err) == (0, "0\n", "")


def test_uncaught_failure_shows_the_users_line(job):
    ended = job("y = torch.linalg.inv(torch.zeros(2, 2, device='dtorch'))\nprint(y)\n")
    assert ended.code == 1
    assert "WorkerError" in ended.err and "script.py:3 in <module>" in ended.err
    assert "singular" in ended.err


def test_sys_exit_gives_its_code_and_runs_what_was_issued(job):
    ended = job(
        "x = torch.ones(8, 8, device='dtorch')\n"
        "for _ in range(20_000):\n"
        "    x = x * 1.0\n"
        "import atexit\n"
        "atexit.register(lambda: print(x.sum().item()))\n"
        "sys.exit(7)\n"
    )
    assert (ended.code, ended.out, ended.err) == (7, "64.0\n", "")


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(3)", 3), ("sys.exit(0)", 1)])
def test_sys_exit_with_an_unread_failure(job, ending, code):
    ended = job(f"y = torch.linalg.inv(torch.zeros(2, 2, device='dtorch'))\n{ending}\n")
    assert ended.code == code
    assert "singular" in ended.err and "nobody read its result" in ended.err


def test_exception_ends_whoever_shows_it(job):
    ended = job(
        "from worker_kernels import slow\n"
        "x = slow(50)\n"
        "dt.sync_future()\n"
        "sys.excepthook = lambda kind, value, trace: print('shown:', value)\n"
        "raise ValueError('the user is wrong')\n",
        limit=40,
    )
    assert ended.code == 1 and ended.out == "shown: the user is wrong\n"


def test_use_after_the_end_is_told(job):
    # Python's own order: an object of the module dies after the atexit functions.
    ended = job(
        "class Late:\n"
        "    def __del__(self):\n"
        "        try:\n"
        "            torch.ones(1, device='dtorch')\n"
        "        except RuntimeError as error:\n"
        "            print(error)\n"
        "late = Late()\n"
        "torch.ones(1, device='dtorch')\n"
    )
    assert ended.code == 0 and "the program is ending" in ended.out


def test_exception_ends_with_work_queued(job):
    ended = job(
        "a = torch.randn(2000, 2000, device='dtorch')\n"
        "for _ in range(500):\n"
        "    a = a @ a\n"
        "raise ValueError('the user is wrong')\n",
        workers=2, limit=40,
    )  # fmt: skip
    assert ended.code == 1 and "the user is wrong" in ended.err
    assert "Fatal" not in ended.err


def test_exception_ends_while_a_kernel_runs(job):
    ended = job(
        "from worker_kernels import slow\n"
        "x = slow(50)\n"
        "dt.sync_future()\n"
        "print('flushed output', end='')\n"
        "raise ValueError('the user is wrong')\n",
        limit=40,
    )
    assert ended.code == 1 and "the user is wrong" in ended.err
    assert ended.out == "flushed output"
    assert "Fatal" not in ended.err


def test_interrupt_while_nothing_runs(job):
    ended = job("x = torch.ones(2, device='dtorch').sum().item()\nimport time\n"
                "print('waiting')\ntime.sleep(50)\n", interrupt_at="waiting", limit=40)  # fmt: skip
    assert ended.code in (130, -signal.SIGINT) and ended.seconds < 10  # 130 in a shell
    assert "KeyboardInterrupt" in ended.err


@pytest.mark.parametrize("wait", [
    "print('waiting'), x.to_torch()", "print('waiting'), dt.sync()", "fill()",
], ids=["value", "sync", "room"])  # fmt: skip
def test_interrupt_while_waiting(job, wait):
    ended = job(
        "from worker_kernels import slow\n"
        "def fill():\n"
        "    y = torch.ones(2, device='dtorch') + 1\n"
        "    print('waiting')\n"  # a miss is behind, which would swallow the signal
        "    while True:\n"
        "        y = y + 1\n"
        "x = slow(50)\n"
        f"{wait}\n",
        interrupt_at="waiting", limit=40, settings={"DTORCH_MAX_RECORDS": "1000"},
    )  # fmt: skip
    assert ended.code == 130 and ended.seconds < 10
    assert "KeyboardInterrupt" in ended.err
    assert "Fatal" not in ended.err
