import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

import worker_kernels  # noqa: E402, F401 -- before init(): worker ranks stay there

import dtorch_mpi as dt  # noqa: E402


@pytest.fixture(autouse=True)
def running():
    if not dt.is_initialized():
        dt.init()
    yield
    dt.sync()
