"""`launch --max-restarts`: what is started again, with how many ranks, and how it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))

import restarting  # noqa: E402

# Plays an mpirun; the script's name is what the job does. `attempts` counts the runs.
FAKE = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "HYDRA build details:"; exit 0; fi
echo "$2" >> attempts
n=$(wc -l < attempts)
case "$*" in
  *worker_dies*) echo "1.0 2 0 killed by signal 9" >> "$DTORCH_DEATHS_FILE"; exit 9 ;;
  *rank_0_dies*) echo "1.0 0 1 ValueError" >> "$DTORCH_DEATHS_FILE"; exit 1 ;;
  *two_hosts*) echo "1.0 3 0 killed" >> "$DTORCH_DEATHS_FILE"
               echo "2.0 0 1 ValueError" >> "$DTORCH_DEATHS_FILE"; exit 1 ;;
  *usage*) exit 2 ;;
  *requeue*) exit 85 ;;
  *second*) if [ $n = 1 ]; then exit 3; fi; exit 0 ;;
  *waits*) trap 'echo told; exit 7' TERM; echo waiting; while :; do sleep 0.05; done ;;
esac
"""


@pytest.fixture
def start(tmp_path, environment):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(FAKE)
    mpirun.chmod(0o755)

    def begin(*arguments):
        command = [sys.executable, "-m", "dtorch_mpi", "launch", "-n", "5", "--launcher", mpirun]
        return subprocess.Popen([*command, *arguments], cwd=tmp_path, env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

    return begin


@pytest.mark.parametrize("way, options, code, ranks", [
    ("worker_dies", ["--max-restarts", "3"], 9, [5, 5, 5, 5]),
    ("worker_dies", ["--max-restarts", "4", "--min-workers", "2"], 9, [5, 4, 3, 3, 3]),
    ("rank_0_dies", ["--max-restarts", "1", "--min-workers", "2"], 1, [5, 5]),
    ("two_hosts", ["--max-restarts", "1", "--min-workers", "2"], 1, [5, 5]),
    ("second", ["--max-restarts", "3"], 0, [5, 5]),
    ("usage", ["--max-restarts", "3"], 2, [5]),
    ("requeue", ["--max-restarts", "3"], 85, [5]),
])
@pytest.mark.timeout(60)
def test_what_is_started_again(way, options, code, ranks, start, tmp_path):
    job = start(*options, way)
    _, err = job.communicate(timeout=40)
    assert job.returncode == code, err
    assert [int(n) for n in (tmp_path / "attempts").read_text().split()] == ranks
    assert err.count("[dtorch-mpi] the job failed (") == len(ranks) - 1
    assert not list(tmp_path.glob(".dtorch-deaths-*"))


@pytest.mark.timeout(60)
def test_a_launch_that_is_told_to_stop_does(start, tmp_path):
    job = start("--max-restarts", "3", "waits")
    assert job.stdout.readline() == "waiting\n"
    job.send_signal(signal.SIGTERM)
    out, err = job.communicate(timeout=20)
    assert (job.returncode, out) == (7, "told\n"), err
    assert (tmp_path / "attempts").read_text() == "5\n"


@pytest.mark.timeout(60)
def test_a_launch_that_is_killed_takes_the_launcher_with_it(start, tmp_path):
    job = start("--max-restarts", "3", "waits")
    assert job.stdout.readline() == "waiting\n"
    job.kill()
    out, _ = job.communicate(timeout=20)
    assert out == "told\n"


@pytest.mark.parametrize("options, text", [
    (["--max-restarts", "-1"], "got --max-restarts -1"),
    (["--min-workers", "2"], "with --max-restarts"),
    (["--max-restarts", "2", "--min-workers", "5"], "got --min-workers 5, expected 1 to 4"),
])
@pytest.mark.timeout(60)
def test_numbers_that_make_no_sense(options, text, start):
    _, err = start(*options, "train.py").communicate(timeout=20)
    assert text in err and "Traceback" not in err


def uninterrupted():
    """The losses of the same training in plain PyTorch."""
    model, optimizer = restarting.parts()
    optimizer = optimizer()
    losses = []
    for step in range(restarting.STEPS):
        rows, targets = restarting.batch_of(step)
        loss = F.mse_loss(model(rows), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.timeout(150)
def test_training_goes_on_with_one_worker_less(tmp_path, mpirun):
    root = Path(__file__).parents[2]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "dtorch_mpi", "launch", "-n", "5", "--max-restarts", "2",
         "--min-workers", "3", "--launcher", mpirun, restarting.__file__,
         tmp_path / "checkpoints", tmp_path / "losses"],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=140,
        cwd=tmp_path,
    )  # fmt: skip
    print(f"{time.monotonic() - began:.0f} s")
    assert done.returncode == 0, done.stderr
    assert "restart 1 of 2, with 4 ranks" in done.stderr
    assert "the job failed (rank 4: killed by signal 9 (SIGKILL)" in done.stderr
    lines = [line.split() for line in (tmp_path / "losses").read_text().splitlines()]
    assert [(int(step), int(workers)) for step, _, workers in lines] == [
        *((step, 4) for step in range(restarting.DEATH + 1)),
        *((step, 3) for step in range(restarting.EVERY, restarting.STEPS)),
    ]
    losses = {int(step): float(loss) for step, loss, _ in lines}
    found = torch.tensor([losses[step] for step in range(restarting.STEPS)])
    torch.testing.assert_close(found, torch.tensor(uninterrupted()), rtol=1e-4, atol=1e-4)
