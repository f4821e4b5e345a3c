"""A training that is asked to stop saves, leaves with 85, and goes on to the same bits."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from launching import ROOT, command_line, run_job

import dtorch_mpi as dt

JOB = Path(__file__).parent / "preempted_job.py"
STEPS = 30


class Job:
    """preempted_job.py, running."""

    def __init__(self, folder, launcher="thread", workers=1, wait=0.0, options=(), **settings):
        self.folder = folder
        command = command_line([JOB, folder, STEPS, wait], launcher, workers)
        command[1:1] = options
        self._out, self._err = folder / "out", folder / "err"
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), **settings}
        if launcher == "thread":
            environment["DTORCH_WORKERS"] = str(workers)
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdout=out, stderr=err, env=environment, cwd=ROOT
            )

    def wait_for(self, text):
        until = time.monotonic() + 60
        while text not in self.out and self.process.poll() is None:
            assert time.monotonic() < until, (text, self.out, self.err)
            time.sleep(0.02)

    def pid_of(self, rank):
        """Of the process of a rank of this job."""
        for folder in Path("/proc").iterdir():
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
                variables = (folder / "environ").read_bytes().split(b"\0")
            except (OSError, ValueError):
                continue
            of_rank = {b"PMI_RANK=%d" % rank, b"OMPI_COMM_WORLD_RANK=%d" % rank}
            if str(self.folder).encode() in command and of_rank & set(variables):
                return int(folder.name)
        raise AssertionError(f"no rank {rank} of {self.folder}")

    def end(self):
        """Wait for it and return the exit code."""
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            raise AssertionError(f"it did not end\n{self.out}\n{self.err}") from None

    @property
    def out(self):
        return self._out.read_text()

    @property
    def err(self):
        return self._err.read_text()

    def losses(self):
        return [line for line in self.out.splitlines() if line.startswith("loss")]


def check_stops(folder, launcher, workers, stops):
    """Stop a run once for each of `stops`, (loss to wait for, function of the job, words)."""
    undisturbed = folder / "undisturbed"
    undisturbed.mkdir()
    an_hour_on = str(int(time.time()) + 3600)
    whole = Job(undisturbed, launcher, workers, SLURM_JOB_END_TIME=an_hour_on)
    assert whole.end() == 0, whole.err
    assert len(whole.losses()) == STEPS
    losses = []
    for number, ask, words in stops:
        job = Job(folder, launcher, workers, wait=0.1)
        job.wait_for(f"loss {number} ")
        ask(job)
        assert job.end() == dt.checkpoint.REQUEUE_CODE, job.err
        assert f"asked to stop by {words}" in job.err
        assert "died" not in job.err
        losses += job.losses()
        assert number < len(losses) < STEPS
    job = Job(folder, launcher, workers)
    assert job.end() == 0, job.err
    assert job.out.endswith("done\n")
    assert losses + job.losses() == whole.losses()


@pytest.mark.timeout(300)
def test_signals_to_a_program_with_worker_threads(tmp_path):
    def send(name):
        return lambda job: job.process.send_signal(signal.Signals[name])

    check_stops(tmp_path, "thread", 2, [
        (5, send("SIGUSR1"), "SIGUSR1"),
        (9, send("SIGUSR2"), "SIGUSR2"),
        (16, send("SIGTERM"), "SIGTERM"),
    ])  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.timeout(300)
def test_signals_to_any_rank(tmp_path):
    def send_to(rank):
        return lambda job: os.kill(job.pid_of(rank), signal.SIGUSR1)

    check_stops(tmp_path, "mpirun", 2, [
        (5, send_to(2), "SIGUSR1 that came to rank 2"),
        (12, lambda job: job.process.send_signal(signal.SIGUSR1), "SIGUSR1 that came to rank"),
    ])  # fmt: skip


def test_a_signal_because_a_rank_has_died_is_a_failure(tmp_path):
    """Hydra sends USR1 to the others when it is told not to end them."""
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
    if "HYDRA" not in version:
        pytest.skip("only MPICH's mpirun does so")
    job = Job(tmp_path, "mpirun", 3, wait=0.2, options=["-disable-auto-cleanup"])
    job.wait_for("loss 8 ")
    newest = dt.checkpoint.latest(tmp_path / "checkpoints")
    began = time.monotonic()
    os.kill(job.pid_of(2), signal.SIGKILL)
    code = job.end()
    assert code not in (0, dt.checkpoint.REQUEUE_CODE), job.err
    assert time.monotonic() - began < 10
    assert "rank 2 of 4" in job.err and "SIGKILL" in job.err
    assert "leaving with code" not in job.err
    assert dt.checkpoint.latest(tmp_path / "checkpoints") == newest


def test_the_end_of_the_jobs_time(tmp_path):
    job = Job(tmp_path, workers=1, SLURM_JOB_END_TIME=str(int(time.time()) + 20))
    assert job.end() == dt.checkpoint.REQUEUE_CODE, job.err
    assert "asked to stop by the job's time" in job.err
    assert len(job.losses()) == 1


def run(program, folder, launcher="thread"):
    """How a program ends that is started in a folder: (code, stderr)."""
    script = folder / "program.py"
    script.write_text("import os, signal, sys, time\nimport torch\nimport dtorch_mpi as dt\n"
                      "dt.init()\nstate = {'x': torch.ones(2, device='dtorch'), 'step': 0}\n"
                      + textwrap.dedent(program))  # fmt: skip
    ended = run_job(script, launcher=launcher, workers=2, limit=60)
    return ended.code, ended.err


def test_signals_and_forked_children(tmp_path):
    """A child is ended by TERM as ever, and the job that waits for it leaves."""
    code, err = run(f"""
        import multiprocessing
        forking = multiprocessing.get_context("fork")
        saver = dt.checkpoint.Checkpointer({str(tmp_path / "checkpoints")!r}, state)
        for _ in range(10):  # at whatever moment of its start
            child = forking.Process(target=time.sleep, args=(1000,))
            child.start()
            child.terminate()
            child.join(20)
            assert child.exitcode == -signal.SIGTERM, child.exitcode
        forking.Process(target=time.sleep, args=(1000,), daemon=True).start()
        os.kill(os.getpid(), signal.SIGUSR1)
        saver.step()
    """, tmp_path)  # fmt: skip
    assert code == dt.checkpoint.REQUEUE_CODE, err


def test_a_handler_that_takes_its_place_is_told_of(tmp_path):
    code, err = run(f"""
        saver = dt.checkpoint.Checkpointer({str(tmp_path / "checkpoints")!r}, state)
        saver.step()
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        saver.step()
        saver.step()
    """, tmp_path)  # fmt: skip
    assert code == 0
    assert err.count("another handler was set for SIGUSR1 since the Checkpointer was made") == 1


def test_a_signal_before_the_checkpointer_is_there(tmp_path):
    code, err = run(f"""
        ranks = os.popen(f"pgrep -P {{os.getppid()}} python").read().split()
        worker = max(int(pid) for pid in ranks)
        os.kill(worker, signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(1)
        saver = dt.checkpoint.Checkpointer(
            {str(tmp_path / "checkpoints")!r}, state, signals=["USR1"])
        saver.step()
    """, tmp_path, launcher="mpirun")  # fmt: skip
    assert code == dt.checkpoint.REQUEUE_CODE, err
    assert "asked to stop by SIGUSR1 that came to rank 2" in err
    assert "[dtorch-mpi] got SIGUSR2: it asks to stop, and nobody looks out for it" in err


def test_a_folder_that_can_not_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(dt.checkpoint.CheckpointError, match="Not a directory; choose another"):
        dt.checkpoint.Checkpointer(tmp_path / "file" / "checkpoints", {})
    with pytest.raises(dt.checkpoint.CheckpointError, match="File exists; choose another"):
        dt.checkpoint.Checkpointer(tmp_path / "file", {})


def test_arguments(tmp_path):
    with pytest.raises(ValueError, match="every_minutes is 0: expected a positive number"):
        dt.checkpoint.Checkpointer(tmp_path, {}, every_minutes=0)
    with pytest.raises(ValueError, match="no signal is named 'HUPP'"):
        dt.checkpoint.Checkpointer(tmp_path, {}, signals=["HUPP"])


def test_saves_by_time_and_by_steps_without_workers():
    """The same loop on plain PyTorch, in a process that has no workers."""
    program = (
        "import torch, tempfile, sys, pathlib\n"
        "import dtorch_mpi as dt\n"
        "folder = tempfile.mkdtemp()\n"
        "model = torch.nn.Linear(2, 2)\n"
        "state = {'model': model, 'step': 0}\n"
        "saver = dt.checkpoint.Checkpointer(folder, state, every_steps=3, every_minutes=60)\n"
        "for step in range(7):\n"
        "    state['step'] += 1\n"
        "    saver.step()\n"
        "assert saver.save().name == '00000003'\n"
        "assert not dt.is_initialized()\n"
        "state = {'model': torch.nn.Linear(2, 2), 'step': 0}\n"
        "again = dt.checkpoint.Checkpointer(folder, state, every_minutes=1e-6)\n"
        "assert again.resumed_from.name == '00000003' and state['step'] == 7\n"
        "assert torch.equal(state['model'].weight, model.weight)\n"
        "again.step()\n"
        "again.save()\n"
        "assert dt.checkpoint.latest(folder).name == '00000005'\n"
    )
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True,
                          text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
