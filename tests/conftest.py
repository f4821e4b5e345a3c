"""What mpirun of Open MPI needs in tests; MPICH's looks at none of it.

Unless told, it refuses root and more ranks than cores, and pins each rank to a core. A window of
shared memory makes it ask UCX too, which complains on stderr where it finds no network of its own.
"""

import getpass
import math
import os
import tempfile
from pathlib import Path

import pytest

os.environ |= {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # Open MPI 4, then 5.
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_osc": "^ucx",
}  # fmt: skip
# Kernels compiled for tests stay apart from the user's, and make haste.
_folder = Path(tempfile.gettempdir()) / f"dtorch_mpi-tests-{getpass.getuser()}"
os.environ.setdefault("DTORCH_CACHE", str(_folder))
os.environ.setdefault("DTORCH_COMPILE_NICE", "0")


@pytest.fixture
def fresh_workers():
    """Workers that know no plan and have counted nothing."""
    import dtorch_mpi as dt

    dt.shutdown()
    dt.init()
    yield
    dt.shutdown()


@pytest.fixture(scope="module")
def mesh(request):
    """Worker threads for a whole module: a 2x2 mesh, or one of the module's own MESH."""
    import dtorch_mpi as dt

    shape = getattr(request.module, "MESH", (2, 2))
    dt.shutdown()
    dt.init(workers=math.prod(shape))
    yield dt.init_device_mesh(shape)
    dt.shutdown()
