"""PyTorch's gloo backend runs the same cases: a check of the suite, not of gloo."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from .conformance import load
from .members import run_in_threads

LACKS = {
    "abort_is_local": "has no abort()",
    "abort_reaches_all": "has no abort()",
    "alltoall_lists": "takes lists of equal shapes only",
    "checks_received": "closes the connection",
    "complex_products": "reduces complex numbers with SUM and AVG only",
    "in_place": "the output may not hold the input",
    "mpi_ranks": "is not a rank of MPI",
    "move_complex64": "allgather and alltoall do not know the dtype",
    "move_complex128": "allgather and alltoall do not know the dtype",
    "move_int16": "does not know the dtype",
    "nan_in_order": "MIN and MAX lose NaN",
    "our_texts": "words its errors in its own way",
    "receive_overflow": "closes the connection",
    "reduce_int16": "does not know the dtype",
    "reduce_keeps_inputs": "leaves partial sums in the other members' tensors",
    "sees_mismatch": "ends the process or hangs",
    "strided": "takes contiguous tensors only; some are silently wrong",
    "uneven_allgather": "takes equal shapes only",
    "wait_again": "a wait that timed out closes the connections",
}
CASES = [c for c in load().values() if not c.needs & LACKS.keys()]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conformance(case, size):
    if size < case.min_size:
        pytest.skip("needs more members")
    store = dist.HashStore()
    limit = timedelta(seconds=20)
    # The members meet while they are made.
    with ThreadPoolExecutor(size) as pool:
        backends = list(pool.map(
            lambda rank: dist.ProcessGroupGloo(store, rank, size, limit), range(size)))
    run_in_threads(case, backends, abort=lambda text: None)
