"""The same tests of reading with more workers, each time in a job of its own."""

from pathlib import Path

import pytest
from launching import run_tests


@pytest.mark.parametrize("workers", [3])
def test_values_with_several_workers(workers):
    run_tests(Path(__file__).with_name("test_values.py"), workers=workers, limit=110)
