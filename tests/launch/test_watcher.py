import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dtorch_mpi.launch.library import loaded_library
from dtorch_mpi.watching import death_watch, watcher
from dtorch_mpi.watching.death_report import Death, describe, first_of, tell

RANK = Path(__file__).with_name("dying_rank.py")
HOST = socket.gethostname()


def processes_with(text):
    """The (pid, command line) of each process whose command line has this text."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if text in line and int(pid) != os.getpid():
            found.append((pid, line))
    return found


def assert_nothing_is_left(folder, library):
    until = time.monotonic() + death_watch.HARD_STOP
    while processes_with(folder) or processes_with(str(library)) or os.path.exists(folder):
        left = processes_with(folder) + processes_with(str(library))
        assert time.monotonic() < until, (left, os.path.exists(folder) and os.listdir(folder))
        time.sleep(0.02)


def command(mpirun, way, library, folder_file):
    return [mpirun, "-n", "3", sys.executable, str(RANK), way, str(library), str(folder_file)]


def run_job(mpirun, environment, library, way, tmp_path, stderr=subprocess.PIPE):
    start = time.monotonic()
    done = subprocess.run(command(mpirun, way, library, tmp_path / "folder"), env=environment,
                          stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=30)
    assert time.monotonic() - start < 15
    return done, (tmp_path / "folder").read_text()


EXPECTED = {
    "kill": "killed by signal 9 (SIGKILL)",
    "segv": "killed by signal 11 (SIGSEGV)",
    "exit": "ended with exit code 3",
    "abort": "the loss is not a number",
}


@pytest.mark.parametrize("way", EXPECTED)
@pytest.mark.timeout(60)
def test_the_first_death_is_told(way, mpirun, environment, writer_library, tmp_path):
    done, folder = run_job(mpirun, environment, writer_library, way, tmp_path)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("[dtorch-mpi]")]
    head = lines[0]
    assert head.startswith(f"[dtorch-mpi] rank 1 of 3 on host {HOST} died: {EXPECTED[way]}"), lines
    assert head.endswith("last operator: aten::mm (record 1234), issued at train.py:31")
    assert sum(" died: " in line for line in lines) == 1, lines
    assert_nothing_is_left(folder, writer_library)
    memory = tuple((tmp_path / "folder.memory").read_text().split())
    assert memory or loaded_library().family != "mpich"
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(memory)]


@pytest.mark.timeout(60)
def test_a_job_that_finishes_is_left_in_silence(mpirun, environment, writer_library, tmp_path):
    done, folder = run_job(mpirun, environment, writer_library, "finish", tmp_path)
    assert done.returncode == 0
    assert "[dtorch-mpi]" not in done.stderr
    assert_nothing_is_left(folder, writer_library)


@pytest.mark.timeout(60)
def test_text_reaches_a_file(mpirun, environment, writer_library, tmp_path):
    with open(tmp_path / "err.txt", "w") as file:
        file.write("before\n")
        file.flush()
        _, folder = run_job(mpirun, environment, writer_library, "kill", tmp_path, stderr=file)
        assert_nothing_is_left(folder, writer_library)
        file.write("after\n")
    text = (tmp_path / "err.txt").read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "rank 1 of 3" in text


@pytest.mark.timeout(60)
def test_text_comes_when_the_launcher_is_killed(mpirun, environment, writer_library, tmp_path):
    with subprocess.Popen(command(mpirun, "wait", writer_library, tmp_path / "folder"),
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as job:
        assert job.stdout.readline() == "all ranks are ready\n"
        folder = (tmp_path / "folder").read_text()
        job.send_signal(signal.SIGKILL)
        _, stderr = job.communicate(timeout=20)
    assert stderr.count(" died: ") == 1
    assert_nothing_is_left(folder, writer_library)


def start_alone(library, tmp_path, environment):
    """A process with a watcher and no launcher, that waits for its end."""
    code = (
        "import ctypes, os, sys, time\n"
        "from dtorch_mpi.watching import watcher\n"
        f"record = ctypes.CDLL({str(library)!r})\n"
        "path = watcher.job_folder(alone=True) + '/rank-0.record'\n"
        "assert record.create(path.encode(), 0, 1, b'h', b'r')\n"
        "watcher.start(path, pid=os.getpid(), rank=0, world=1, host='h')\n"
        "print(os.path.dirname(path), flush=True)\n"
        "time.sleep(30)\n")
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, cwd=tmp_path,
                            env=environment)


@pytest.mark.timeout(60)
def test_without_a_launcher(writer_library, tmp_path, environment):
    with start_alone(writer_library, tmp_path, environment) as job:
        folder = job.stdout.readline().strip()
        assert oct(os.stat(folder).st_mode & 0o777) == "0o700"
        job.kill()
        _, stderr = job.communicate(timeout=20)
    assert "rank 0 of 1 on host h died: killed by signal 9 (SIGKILL)" in stderr
    assert "no operator yet (it was starting)" in stderr
    assert_nothing_is_left(folder, writer_library)


@pytest.mark.timeout(30)
def test_stale_folders_go_and_live_ones_stay(tmp_path, monkeypatch):
    stale = tmp_path / f"dtorch-{os.getuid()}-old-1"
    live = tmp_path / f"dtorch-{os.getuid()}-live-2"
    young = tmp_path / f"dtorch-{os.getuid()}-young-3"
    for folder in (stale, live, young):
        folder.mkdir()
        (folder / "rank-0.record").write_text("")
    for folder in (stale, live):
        os.utime(folder, (1, 1))
    import fcntl

    lock = os.open(live, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    watcher._remove_stale(str(tmp_path))
    os.close(lock)
    assert sorted(os.listdir(tmp_path)) == sorted([live.name, young.name])


def death(rank, when, own=False, before=(), after=()):
    return Death(rank, when, own, "text", before, after)


@pytest.mark.parametrize("deaths, first", [
    ([death(0, 1.0), death(1, 0.9), death(2, 1.1)], 1),
    ([death(0, 1.0), death(1, 1.02, own=True), death(2, 1.01)], 1),
    ([death(0, 1.0, own=True), death(1, 0.99)], 0),
    # The watchers woke in the opposite order.
    ([death(0, 1.0), death(1, 0.9, before=(2,)), death(2, 1.1, before=(), after=(0,))], 2),
    ([death(0, 1.00, own=True, before=(1,)), death(1, 1.01, own=True)], 1),
    # Rank 0 noticed later that rank 1 was gone.
    ([death(0, 1.5, own=True), death(1, 1.0)], 1),
])
def test_which_death_was_first(deaths, first, tmp_path):
    for one in deaths:
        one.save(tmp_path)
    saved = [Death.load(tmp_path / f"rank-{one.rank}.death") for one in deaths]
    assert first_of(saved).rank == first


class Record:
    cause = ""
    signal = 0
    fault_address = 0


@pytest.mark.parametrize("status, noted, oom, expected, own", [
    (9, 0, 0, "killed by signal 9 (SIGKILL)", False),
    (9, 0, 2, "memory ran out", True),
    (15, 0, 0, "(SIGTERM)", False),
    (11 | 0x80, 0, 0, "killed by signal 11 (SIGSEGV)", True),
    (None, 7, 0, "killed by signal 7 (SIGBUS)", True),
    (3 << 8, 0, 0, "exit code 3", True),
    (None, 0, 0, "without a trace", False),
])
def test_describe(status, noted, oom, expected, own):
    record = Record()
    record.signal = noted
    text, has_own = describe(status, record, oom)
    assert expected in text
    assert has_own is own


def test_tell_goes_on_to_the_next_place(tmp_path):
    read_end, write_end = os.pipe()
    os.close(read_end)
    out_read, out_write = os.pipe()
    tell("text\n", (-1, write_end, out_write), tmp_path / "log")
    assert os.read(out_read, 100) == b"text\n"
    tell("text\n", (-1, write_end), tmp_path / "log")
    assert (tmp_path / "log").read_text() == "text\n"
    for fd in (write_end, out_read, out_write):
        os.close(fd)
