import pytest

import dtorch_mpi as dt


@pytest.fixture(autouse=True)
def running():
    """Each test begins with workers that know no plan."""
    dt.shutdown()
    dt.init()
    yield
    dt.shutdown()
