"""One MPI rank of the conformance run: `mpirun -n N python -m ...mpi_members OUTPUT [options]`.

Rank 0 writes {case: {"failures": {rank: text}, "seconds": s}} to OUTPUT as JSON.
"""

import argparse
import json
import re
import time
import traceback
from datetime import timedelta

import torch
from mpi4py import MPI

from dtorch_mpi._collectives import host_staged
from dtorch_mpi._mpi_collectives import MPIBackend

from .conformance import load

LACKS = {
    "sees_mismatch": "MPI does not compare the members' calls",
    "abort_reaches_all": "MPI can't tell the other ranks without their help",
}

# Names of cases with more than 100,000 elements.
LARGE = re.compile(r"large|\d{6}|90001")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--largest", type=int, help="bytes of one plain message")
    parser.add_argument("--without-large", action="store_true", help="no case of megabytes")
    parser.add_argument("--host-staged", action="store_true",
                        help="tensors on a simulated GPU that all ranks share, and no violations")
    parser.add_argument("--only", default="", help="comma-separated beginnings of case names")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.host_staged:
        import simulated_gpu

        from .staged_members import DEVICE, LEFT_OUT, on_gpu

        simulated_gpu.load(devices=1)

    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    options = {} if arguments.largest is None else {"largest": arguments.largest}
    results = {}
    for name, case in load().items():
        wanted = name.startswith(tuple(arguments.only.split(","))) and (
            arguments.only or "only_by_name" not in case.needs)
        if arguments.without_large and LARGE.search(name):
            continue
        if arguments.host_staged and name in LEFT_OUT:
            continue
        if not wanted or case.needs & LACKS.keys() or size < case.min_size:
            continue
        # A fresh communicator for each: a case that fails leaves its own out of step.
        backend = MPIBackend(world, **options)
        if arguments.host_staged:
            simulated_gpu.reset()
            backend, case = host_staged(backend, DEVICE), on_gpu(case)
        backend.set_timeout(timedelta(seconds=60 if arguments.only else 10))
        start = time.monotonic()
        failure = None
        try:
            case.run(backend, rank, size)
            if arguments.host_staged:
                assert not (found := simulated_gpu.violations()), "\n".join(found)
        except BaseException:
            failure = traceback.format_exc()
        del backend
        failures = {r: text for r, text in enumerate(world.allgather(failure)) if text}
        results[name] = {"failures": failures, "seconds": round(time.monotonic() - start, 3)}
    if rank == 0:
        with open(arguments.output, "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
