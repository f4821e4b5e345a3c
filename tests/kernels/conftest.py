import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

# Before init(): worker ranks stay there.
import custom_operators  # noqa: E402, F401
import registered_kernels  # noqa: E402, F401

import dtorch_mpi as dt  # noqa: E402


@pytest.fixture(autouse=True)
def running():
    if not dt.is_initialized():
        dt.init()
    yield
    if dt.is_initialized():
        dt.sync()  # a failure that a test has not read belongs to it
