"""Assertions of the modules that the tests share show their values too."""

import pytest

pytest.register_assert_rewrite("simulate")


@pytest.fixture(scope="module")
def mesh():
    """A 2x2 mesh of four worker threads, for a whole module."""
    import dtorch_mpi as dt

    dt.shutdown()
    dt.init(workers=4)
    yield dt.init_device_mesh((2, 2))
    dt.shutdown()
