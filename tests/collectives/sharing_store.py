"""Ranks of MPI that find a store without an address; the last one is told to be on another node."""

from datetime import timedelta

from mpi4py import MPI

from dtorch_mpi.device_groups import share_store

comm = MPI.COMM_WORLD
store = share_store(comm, server=1, same_node=comm.rank < 2)
store.set(f"from {comm.rank}", f"word {comm.rank}")
store.wait([f"from {rank}" for rank in range(comm.size)], timedelta(seconds=20))
print(sorted(store.get(f"from {rank}").decode() for rank in range(comm.size)), flush=True)
comm.Barrier()  # the server's end is the store's
