"""Tests of the device run in one process, beside one worker thread unless they ask for more."""

import sys
from pathlib import Path

import pytest

import dtorch_mpi as dt

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_failure_left_behind():
    """A failure on a worker that a test did not expect belongs to that test."""
    yield
    if dt.is_initialized():
        dt.sync()


@pytest.fixture(params=[1, 3])
def several_workers(request):
    """The body runs with one worker thread and with three."""
    dt.shutdown()
    dt.init(workers=request.param)
    yield request.param
    dt.shutdown()
