import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

import worker_kernels  # noqa: E402, F401 -- before init(): worker ranks stay there


@pytest.fixture(autouse=True)
def running(fresh_workers):
    """Each test begins with workers that know no plan."""
