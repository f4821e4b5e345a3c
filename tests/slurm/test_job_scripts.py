"""What the job scripts in slurm/ say to whoever has no Slurm around."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "slurm").glob("*.sbatch"))
NO_SLURM = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_outside_slurm_it_says_how_it_is_used(script):
    done = subprocess.run(["bash", script, "train.py"], env=NO_SLURM, capture_output=True,
                          text=True)  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert f"sbatch slurm/{script.name} train.py" in done.stderr
    assert "Without Slurm:" in done.stderr


def test_what_they_have_in_common_is_the_same():
    # Each stands alone, to be copied; what comes after their options must not drift apart.
    def common(script):
        text = script.read_text()
        lines = text[text.index("set -euo pipefail"):].replace(script.name, "NAME").splitlines()
        return [line for line in lines if not line.startswith("#") and "NCCL" not in line]

    assert all(common(script) == common(SCRIPTS[0]) for script in SCRIPTS)
