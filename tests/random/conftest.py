"""Programs whose numbers must not depend on how many workers make them, nor on who makes which."""

import sys
from pathlib import Path

import pytest

import dtorch_mpi as dt

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("programs")


@pytest.fixture
def with_workers():
    """Call it with a number: from then on that many worker threads run."""

    def start(count):
        dt.shutdown()
        dt.init(workers=count)

    yield start
    dt.shutdown()


@pytest.fixture(autouse=True)
def no_failure_left_behind():
    yield
    if dt.is_initialized():
        dt.sync()
