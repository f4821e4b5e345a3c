"""A model that rank 0's memory can't hold is made, placed and stepped on the workers."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from launching import run_job  # noqa: E402

JOB = Path(__file__).with_name("larger_than_rank0.py")


@pytest.mark.timeout(150)
def test_a_model_larger_than_rank0_allows():
    ended = run_job(JOB, launcher="mpirun", workers=2, limit=140)
    assert ended.code == 0, f"exit code {ended.code}\n{ended.out}\n{ended.err}"
    assert "stepped" in ended.out
