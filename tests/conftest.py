"""What mpirun of Open MPI needs in tests; MPICH's looks at none of it.

Unless told, it refuses root and more ranks than cores, and pins each rank to a core. A window of
shared memory makes it ask UCX too, which complains on stderr where it finds no network of its own.
"""

import os

import pytest

os.environ |= {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # Open MPI 4, then 5.
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_osc": "^ucx",
}  # fmt: skip


@pytest.fixture
def fresh_workers():
    """Workers that know no plan and have counted nothing."""
    import dtorch_mpi as dt

    dt.shutdown()
    dt.init()
    yield
    dt.shutdown()
