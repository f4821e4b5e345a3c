"""Whole programs of PyTorch's users, run beside worker threads."""

import pytest

import dtorch_mpi as dt


@pytest.fixture(scope="session")
def _workers():
    state = {"count": None}
    yield state
    dt.shutdown()


@pytest.fixture
def on_workers(_workers):
    """A function that has this many workers run; what they fail at belongs to the test."""

    def start(count):
        if _workers["count"] != count or not dt.is_initialized():
            dt.shutdown()
            dt.init(workers=count)
            _workers["count"] = count

    yield start
    if dt.is_initialized():
        dt.sync()
