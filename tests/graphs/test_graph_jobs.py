"""Graphs in jobs of their own, with other numbers of workers and under mpirun."""

from pathlib import Path

import pytest
from launching import run_tests

TESTS = [Path(__file__).with_name(f"test_{name}.py")
         for name in ("graphs", "memory_between_graphs", "lives_of_graphs")]  # fmt: skip


@pytest.mark.parametrize(("launcher", "workers"), [
    ("mpirun", 3), pytest.param("thread", 4, marks=pytest.mark.sweep),
    pytest.param("mpirun", 1, marks=pytest.mark.sweep),
])  # fmt: skip
def test_graphs_in_a_job(launcher, workers):
    run_tests(*TESTS, launcher=launcher, workers=workers, limit=150)
