"""One tensor larger than an MPI count: up to a worker rank and back."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from launching import run_job  # noqa: E402

JOB = """
import torch, dtorch_mpi as dt
dt.init()
x = torch.arange(2_200_000_000 // 8)
assert x.nbytes > 2**31
assert torch.equal(x.to("dtorch").to_torch(), x)
print("equal")
"""


@pytest.mark.slow
def test_more_than_two_gib_go_up_and_come_back(tmp_path):
    script = tmp_path / "large.py"
    script.write_text(JOB)
    ended = run_job(script, launcher="mpirun", workers=1, limit=110)
    assert (ended.code, ended.out) == (0, "equal\n"), ended.err
