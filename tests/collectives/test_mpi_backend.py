"""The MPI backend: the conformance cases on 1 to 4 ranks, and the ends of a job.

One mpirun runs all cases for a number of ranks; the tests here look up what it wrote.
"""

import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("dtorch_mpi._mpi_collectives", reason="built without MPI")
MPIRUN = os.environ.get("MPIRUN") or shutil.which("mpirun")
if MPIRUN is None:
    pytest.skip("no mpirun on PATH, and MPIRUN is not set", allow_module_level=True)

from . import mpi_members  # noqa: E402
from .conformance import load  # noqa: E402

ROOT = Path(__file__).parents[len(__package__.split("."))]
CASES = {name: case for name, case in load().items()
         if not case.needs & {*mpi_members.LACKS, "only_by_name"}}


def mpirun(size, *command, seconds):
    """Run `python command` on `size` ranks; the finished process with both outputs in stdout."""
    environment = dict(os.environ)
    paths = [str(ROOT), str(Path(sys.modules["dtorch_mpi"].__path__[0]).parent)]
    environment["PYTHONPATH"] = os.pathsep.join([*paths, environment.get("PYTHONPATH", "")])
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.run([*shlex.split(MPIRUN), "-n", str(size), sys.executable, *command],
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=seconds)


@functools.cache
def run_of(size, *options, seconds):
    """(results, None), or (None, what went wrong): a run that fails is not run again."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "results.json"
        try:
            done = mpirun(size, "-m", f"{__package__}.mpi_members", str(output), *options,
                          seconds=seconds)
        except subprocess.TimeoutExpired as late:
            return None, f"{size} ranks had not ended after {seconds} s:\n{late.stdout}"
        if done.returncode != 0 or not output.exists():
            return None, f"{size} ranks ended with {done.returncode}:\n{done.stdout[-4000:]}"
        return json.loads(output.read_text()), None


def results(size, *options, seconds=80):
    found, failure = run_of(size, *options, seconds=seconds)
    assert failure is None, failure
    return found


def check(found):
    assert not found["failures"], "\n".join(
        f"rank {rank}:\n{text}" for rank, text in found["failures"].items())


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_conformance(name, size):
    if size < CASES[name].min_size:
        pytest.skip("needs more ranks")
    check(results(size)[name])


PIECES = ("allreduce", "allgather", "reduce", "gather", "scatter", "broadcast", "alltoall", "send_")


@pytest.mark.parametrize("name", [
    name for name in CASES if name.startswith(PIECES) and not mpi_members.LARGE.search(name)])
def test_in_pieces(name):
    """Each message in pieces of 40 bytes, as large ones go in pieces of many mebibytes."""
    options = ("--largest", "40", "--without-large", "--only", ",".join(PIECES))
    check(results(3, *options)[name])


@pytest.mark.slow
def test_more_than_two_gib():
    check(results(2, "--only", "more_than_two_gib", seconds=110)["more_than_two_gib"])


def test_backend_may_outlive_mpi():
    """A backend, a handle and a future of work under way are dropped after MPI_Finalize."""
    done = mpirun(2, "-c", """if True:
        import torch
        from torch._C import _distributed_c10d as c10d
        from mpi4py import MPI
        from dtorch_mpi._mpi_collectives import MPIBackend
        backend = MPIBackend(MPI.COMM_WORLD)
        work = backend.allreduce([torch.ones(3)], c10d.AllreduceOptions())
        future = work.get_future()
        future.wait()
        MPI.Finalize()
        try:
            backend.barrier(c10d.BarrierOptions())
        except Exception as error:
            print(type(error).__name__, error)
        try:
            MPIBackend(MPI.COMM_SELF)
        except Exception as error:
            print(type(error).__name__, error)
        del work, future, backend
        print("end of the rank")
    """, seconds=60)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("end of the rank") == 2, done.stdout
    assert done.stdout.count("MPI_Finalize has been called") == 2, done.stdout
    assert done.stdout.count("do not finalize it") == 2, done.stdout


def test_needs_a_communicator_of_mpi4py():
    from dtorch_mpi._mpi_collectives import MPIBackend

    with pytest.raises(TypeError, match="got a int, expected an mpi4py.MPI.Comm"):
        MPIBackend(3)
