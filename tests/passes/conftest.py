import pytest


@pytest.fixture(autouse=True)
def running(fresh_workers):
    """Each test begins with workers that know no plan."""
