"""The same tests of failures with more workers, each time in a job of its own."""

from pathlib import Path

import pytest
from launching import run_tests


@pytest.mark.parametrize("workers", [3])
def test_failures_with_several_workers(workers):
    run_tests(Path(__file__).with_name("test_failures.py"), workers=workers, limit=110)
