"""Data parallel, fully sharded and tensor parallel training gives single-device losses."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from launching import run_job  # noqa: E402

JOB = Path(__file__).with_name("parallel_training.py")


@pytest.mark.parametrize(
    ("launcher", "workers", "ways"),
    [
        ("thread", 3, ["data", "sharded"]), ("mpirun", 4, ["tensor"]),
        *(pytest.param(*case, marks=pytest.mark.sweep) for case in (
            ("thread", 1, ["data", "sharded"]), ("thread", 2, ["data", "sharded"]),
            ("thread", 4, ["data", "sharded", "tensor"]),
            ("mpirun", 1, ["data"]), ("mpirun", 2, ["data", "sharded"]),
        )),
    ],
)  # fmt: skip
@pytest.mark.timeout(200)
def test_losses_are_those_of_one_device(launcher, workers, ways):
    ended = run_job(JOB, *ways, launcher=launcher, workers=workers, limit=180)
    assert ended.code == 0, f"exit code {ended.code}\n{ended.out}\n{ended.err}"
    assert ended.out.count("workers:") == 2 * len(ways), ended.out
