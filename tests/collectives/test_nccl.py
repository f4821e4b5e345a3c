"""PyTorch's NCCL backend runs the same cases, a thread and a GPU for each member."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from dtorch_mpi._collectives import ThreadGroups, make_group
from dtorch_mpi.device_groups import SHUTDOWN_SECONDS, DeviceGroups
from dtorch_mpi.launch.placement import worker_device

from .calls import allreduce, assert_equal
from .conformance import load
from .members import run_in_threads

NUM_GPUS = torch.cuda.device_count() if dist.is_nccl_available() else 0
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NUM_GPUS == 0, reason="no GPU with NCCL")]

LACKS = {
    "abort_is_local": "what is under way is lost for all",
    "abort_reaches_all": "aborts one member",
    "any_source": "has no receive from any member",
    "checks_received": "does not compare sizes",
    "complex_products": "reduces complex numbers with SUM and AVG only",
    "in_place": "alltoall may not be in place",
    "mpi_ranks": "is not a rank of MPI",
    "move_int16": "does not know the dtype",
    "nan_in_order": "does not promise NaN",
    "our_texts": "words its errors in its own way",
    "receive_overflow": "does not compare sizes",
    "reduce_BAND": "has no bitwise operators",
    "reduce_BOR": "has no bitwise operators",
    "reduce_BXOR": "has no bitwise operators",
    "reduce_bool": "adds bools as numbers",
    "reduce_int16": "does not know the dtype",
    "results": "has no result()",
    "sees_mismatch": "hangs",
    "strided": "takes contiguous tensors only",
    "wait_again": "wait() waits on the stream, not here",
}
# These look at the host's clock or expect wait() to block the host.
HOST_TIMED = {"barrier_holds_everyone", "issue_does_not_wait"}
CASES = [c for c in load().values() if not c.needs & LACKS.keys() and c.name not in HOST_TIMED]


@pytest.mark.parametrize("size", range(1, min(NUM_GPUS, 4) + 1) or [1])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conformance(case, size):
    if size < case.min_size:
        pytest.skip("needs more members")
    store = dist.HashStore()

    def make(rank):
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=30)
        return dist.ProcessGroupNCCL(store, rank, size, options)

    with ThreadPoolExecutor(size) as pool:
        backends = list(pool.map(make, range(size)))

    def on_own_gpu(backend, rank, size):
        torch.cuda.set_device(rank)
        with torch.device("cuda", rank):
            case.body(backend, rank, size)

    def abort(text):
        for backend in backends:
            backend.abort()

    run_in_threads(replace(case, body=on_own_gpu), backends, abort)


@pytest.mark.parametrize("size", range(1, min(NUM_GPUS, 4) + 1) or [1])
def test_workers_with_gpus_of_their_own(size):
    """The maker of groups gives them NCCL, and those on one GPU host memory."""
    devices = [torch.device("cuda", index) for index in [*range(size), 0]]
    inner = ThreadGroups()
    groups = DeviceGroups([worker_device(device) for device in devices], inner.maker(),
                          dist.HashStore(), inner.abort)
    maker = groups.maker()

    def member(worker, workers):
        torch.cuda.set_device(devices[worker])
        backend = make_group(maker, workers, workers.index(worker))
        tensor = torch.full((1000,), 1.0 + worker, device=devices[worker])
        allreduce(backend, [tensor]).wait()
        return backend.name(), tensor.cpu()

    with ThreadPoolExecutor(size + 1) as pool:
        for workers, name in (list(range(size)), "nccl"), ([0, size], "dtorch-host-staged"):
            for got, total in pool.map(member, workers, [workers] * len(workers)):
                assert got == name
                expected = sum(1.0 + worker for worker in workers)
                assert_equal(total, torch.full((1000,), expected))
    start = time.monotonic()
    groups.shutdown()
    assert time.monotonic() - start < SHUTDOWN_SECONDS, "some group could not end"
