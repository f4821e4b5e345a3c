"""Tests of PyTorch's operators, beside worker threads. They share the cases of the sweep in
scripts/opdb_coverage.py."""

import sys
from pathlib import Path

import pytest

import dtorch_mpi as dt

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))


@pytest.fixture
def workers(request):
    """Worker threads, `request.param` or four of them, for one test."""
    dt.shutdown()
    count = getattr(request, "param", 4)
    dt.init(workers=count)
    yield count
    dt.shutdown()
