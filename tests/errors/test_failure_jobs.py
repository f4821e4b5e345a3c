"""The same tests of failures with more workers, each time in a job of its own."""

from pathlib import Path

import pytest
from launching import run_tests


@pytest.mark.parametrize(("launcher", "workers"), [
    ("mpirun", 2), pytest.param("thread", 2, marks=pytest.mark.sweep),
    pytest.param("thread", 3, marks=pytest.mark.sweep),
])  # fmt: skip
@pytest.mark.timeout(120)
def test_failures_with_several_workers(launcher, workers):
    run_tests(
        Path(__file__).with_name("test_failures.py"), launcher=launcher, workers=workers, limit=110
    )
