"""scripts/kill_checkpoints.py: whatever moment a program is killed at, a checkpoint is whole."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("launcher", "kills", "inside"), [
    ("thread", 12, 6), ("mpirun", 4, 2), pytest.param("thread", 50, 30, marks=pytest.mark.sweep),
])  # fmt: skip
def test_the_checkpoint_before_is_whole(launcher, kills, inside):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("DTORCH_WORKERS", None)
    ended = subprocess.run(
        [sys.executable, ROOT / "scripts" / "kill_checkpoints.py", "--kills", str(kills),
         "--launcher", launcher],
        capture_output=True, text=True, env=environment, timeout=280,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = re.search(rf"{kills} kills, (\d+) of them inside a save", ended.stdout)
    assert found and int(found[1]) >= inside, ended.stdout
    if kills >= 50:
        phases = re.findall(r"killed with: (.*)", ended.stdout)
        assert len(phases) >= 4, "spread over the phases of a save"
