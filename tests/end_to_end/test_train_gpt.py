"""scripts/train_gpt.py as a user runs it, small; plain PyTorch is the oracle."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
OPTIONS = ["--block", "32", "--layers", "2", "--width", "32", "--batch", "12", "--steps", "60",
           "--warmup", "10", "--eval-batches", "10", "--sample-bytes", "20"]

needs_core = pytest.mark.skipif(
    importlib.util.find_spec("dtorch_mpi._core") is None, reason="dtorch_mpi is not built"
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.h5"
    subprocess.run(
        [sys.executable, SCRIPTS / "prepare_corpus.py", path, "--block", "32"],
        check=True, capture_output=True,
    )
    return path


def train(corpus, out, *options, launch=(), fails=False):
    """Run the script; return its metrics, or what it printed where it must fail."""
    command = [*launch, sys.executable, SCRIPTS / "train_gpt.py", corpus, "--out", out,
               *OPTIONS, *options]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=110)
    if fails:
        assert ended.returncode not in (0, None)
        return ended.stdout + ended.stderr
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads((out / "metrics.json").read_text())


@pytest.fixture(scope="module")
def plain(corpus, tmp_path_factory):
    """Folder and metrics of the run on plain PyTorch."""
    out = tmp_path_factory.mktemp("plain")
    return out, train(corpus, out, "--device", "cpu")


def test_plain_pytorch_learns_and_writes_its_results(plain):
    out, metrics = plain
    assert len(metrics["losses"]) == 60
    assert metrics["losses"][0] == pytest.approx(5.545, abs=0.1)  # ln 256: knows nothing yet
    assert metrics["held_out_loss"] < 3.6
    assert metrics["tokens_per_second"] > 0
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "sample.txt").read_text(encoding="utf-8").startswith("def ")


def test_a_corpus_of_another_block_is_refused(corpus, tmp_path):
    text = train(corpus, tmp_path, "--device", "cpu", "--block", "64", fails=True)
    assert "has rows of shape (33,), --block 64 needs (65,)" in text
    assert "Traceback" not in text


@needs_core
@pytest.mark.parametrize("launch", [(), ("mpirun", "-n", "3")], ids=["thread", "mpirun-3"])
def test_workers_reach_plain_pytorchs_loss_and_read_their_own_data(corpus, plain, tmp_path, launch):
    _, expected = plain
    metrics = train(corpus, tmp_path, launch=launch)
    assert metrics["workers"] == (2 if launch else 1)
    assert metrics["training_bytes_sent"] == 0
    assert metrics["losses"][:20] == pytest.approx(expected["losses"][:20], rel=1e-3)
    assert metrics["held_out_loss"] == pytest.approx(expected["held_out_loss"], rel=0.01)
