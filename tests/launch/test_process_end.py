import os
import signal
import subprocess
import sys

import pytest

from dtorch_mpi.watching.process_end import ProcessEnd

HOLD = """\
import sys
from dtorch_mpi.watching.process_end import hold_mark
hold_mark(sys.argv[1])
print("held", flush=True)
input()
"""


@pytest.fixture
def holders(tmp_path, environment):
    """Four processes; that of index i holds the mark <i>."""
    children = [subprocess.Popen([sys.executable, "-c", HOLD, str(index)], cwd=tmp_path,
                                 env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                for index in range(4)]
    for child in children:
        assert child.stdout.readline() == b"held\n"
    yield children
    for child in children:
        child.kill()
        child.communicate()


def kill(child):
    # Ended, and still there for its parent to take.
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.timeout(30)
def test_the_order_is_the_kernels_not_that_of_waking(holders, tmp_path):
    end = ProcessEnd(holders[0].pid)
    for index in range(4):
        end.watch_mark(index or None, tmp_path / str(index))
    for index in (3, 1, 0, 2):
        kill(holders[index])
    end.wait()
    assert end.before == (3, 1)
    assert end.after == (2,)


@pytest.mark.timeout(30)
def test_a_missing_mark_tells_nothing(holders, tmp_path):
    end = ProcessEnd(holders[0].pid)
    end.watch_mark(None, tmp_path / "0")
    end.watch_mark("gone", tmp_path / "none")
    kill(holders[0])
    end.wait()
    assert (end.before, end.after) == ((), ())


FORK = """\
import os, sys
from dtorch_mpi.watching.process_end import hold_mark
hold_mark("forking")
if os.fork() == 0:
    print("held", flush=True)  # by the parent alone: this process has let go of it
    input()
    os._exit(0)
"""


@pytest.mark.timeout(30)
def test_a_forked_child_does_not_keep_the_mark_up(tmp_path, environment):
    os.mkfifo(tmp_path / "other")
    parent = subprocess.Popen([sys.executable, "-c", FORK + "input()"], cwd=tmp_path,
                              env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    parent.stdout.readline()
    end = ProcessEnd(parent.pid)
    end.watch_mark(None, tmp_path / "forking")
    end.watch_mark("other", tmp_path / "other")
    kill(parent)
    end.wait()
    assert end.after == ("other",)
    parent.communicate()


@pytest.mark.timeout(30)
def test_status_before_and_after_the_parent_takes_it(holders):
    end = ProcessEnd(holders[0].pid)
    assert end.status() is None
    kill(holders[0])
    end.wait()
    assert end.status() == signal.SIGKILL
    holders[0].wait()
    # Linux before 6.15 forgets it.
    assert end.status() in (signal.SIGKILL, None)


@pytest.mark.timeout(30)
def test_a_process_ends_with_its_launcher(holders):
    end = ProcessEnd(holders[0].pid)
    end.end_with(holders[1].pid)
    kill(holders[1])
    end.wait()
    assert end.orphaned
    assert end.status() == signal.SIGTERM


@pytest.mark.timeout(30)
def test_a_process_that_ignores_sigterm_ends_with_its_launcher(holders):
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True)"
    with subprocess.Popen([sys.executable, "-c", f"{code}; input()"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout.readline() == b"on\n"
        end = ProcessEnd(stubborn.pid)
        end.end_with(holders[0].pid)
        kill(holders[0])
        end.wait()
        assert end.status() == signal.SIGKILL


@pytest.mark.timeout(30)
def test_without_pidfd(holders, tmp_path, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    end = ProcessEnd(holders[0].pid)
    for index in range(2):
        end.watch_mark(index or None, tmp_path / str(index))
    kill(holders[1])
    kill(holders[0])
    end.wait()
    assert (end.before, end.after) == ((1,), ())
    assert end.status() == signal.SIGKILL
    holders[0].wait()
    assert end.status() is None
