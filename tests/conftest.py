"""What all tests need: settings of launchers, devices for the workers.

Tests run with workers on CPUs, also where there is a GPU. Those of the folders in ON_GPUS run with
workers on GPUs as well: on simulated ones where SIMULATED_GPUS says how many, and on real ones with
DTORCH_DEVICE=gpu (scripts/gpu_check.sh).
"""

import getpass
import math
import os
import signal
import tempfile
from pathlib import Path

import pytest

# Unless told, mpirun of Open MPI refuses root and more ranks than cores, and pins each rank to a
# core. A window of shared memory makes it ask UCX too, which complains where it finds no network.
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

# Jobs are interrupted, also where these tests run in a shell's background, which ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)

SIMULATED_GPUS = int(os.environ.get("SIMULATED_GPUS", "0"))
os.environ.setdefault("DTORCH_DEVICE", "gpu" if SIMULATED_GPUS else "cpu")
if SIMULATED_GPUS:
    import simulated_gpu

    simulated_gpu.load(SIMULATED_GPUS)
    # A worker's threads hear from each other how far the device is.
    simulated_gpu.set_host_order("process")

ON_GPUS = {"checkpoint", "device", "errors", "futures", "gpu", "graphs", "kernels", "meshes",
           "operators", "random", "sharding"}  # fmt: skip


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in ON_GPUS:
            item.add_marker("gpu")
        # One that fails there takes the process's device with it, as plain PyTorch knows it.
        on_real_gpu = os.environ["DTORCH_DEVICE"] == "gpu" and not SIMULATED_GPUS
        if on_real_gpu and item.get_closest_marker("asserts_on_device"):
            item.add_marker(pytest.mark.skip(reason="its kernel would end the GPU's context"))


@pytest.fixture(autouse=bool(SIMULATED_GPUS))
def streams_in_order():
    """No use of a simulated GPU's memory by two streams without a wait between."""
    simulated_gpu.reset()
    yield
    found = simulated_gpu.violations()
    simulated_gpu.reset()
    assert not found, "\n".join(found[:5])


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
