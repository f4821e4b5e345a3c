"""The same tests of reading with more workers, each time in a job of its own."""

from pathlib import Path

import pytest
from launching import run_tests


def test_values_with_several_workers():
    run_tests(Path(__file__).with_name("test_values.py"), workers=3, limit=110)


@pytest.mark.parametrize("home", ["shared", "network"])
def test_values_from_other_processes(home):
    run_tests(Path(__file__).with_name("test_values.py"), launcher="mpirun", workers=2, home=home,
              limit=110)
