"""Collectives over MPI. Not built where there is no mpicc."""

from mpi4py.MPI import Comm
from torch._C._distributed_c10d import Backend

def MPIBackend(comm: Comm, largest: int = ...) -> Backend: ...  # noqa: N802
