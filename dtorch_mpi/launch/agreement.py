"""Check at start-up that all ranks run the same thing."""

import json
import platform
import socket
from array import array

import torch

from dtorch_mpi.launch import script
from dtorch_mpi.version import __version__


def facts():
    """What this rank runs: a dict of text by subject, the same on every rank of a sound job."""
    return {
        "dtorch-mpi": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "script": script.digest(),
    }


def check_agreement(comm):
    """Raise the same RuntimeError on every rank when two ranks do not run the same thing.

    Compares the versions of dtorch-mpi, torch and Python and the script's content; its path may
    differ (a file system mounted elsewhere). Collective over the mpi4py communicator.
    """
    mine = {"host": socket.gethostname(), "path": script.path() or "", "facts": facts()}
    ranks = gather(comm, mine)
    differences = disagreements(ranks)
    if differences:
        raise RuntimeError(
            "the ranks of this job do not run the same thing:\n  " + "\n  ".join(differences)
            + "\nUse one environment and one copy of the script, on a file system that all hosts "
            "share, or bring the copies to the same state.")


def disagreements(ranks, most=8):
    """Lines that say which rank on which host differs from what most ranks have, and how.

    `ranks` has one dict of host, path and facts for each rank.
    """
    lines = []
    for subject in ranks[0]["facts"]:
        values = [rank["facts"][subject] for rank in ranks]
        usual = max(values, key=lambda value: (values.count(value), value == values[0]))
        with_usual = values.index(usual)
        odd = [index for index, value in enumerate(values) if value != usual]
        for index in odd[:most]:
            where = f"rank {index} on host {ranks[index]['host']}"
            as_rank = f"rank {with_usual} on host {ranks[with_usual]['host']}"
            if subject == "script":
                lines.append(
                    f"{where} has another script: {ranks[index]['path']} (sha256 "
                    f"{values[index]}); {as_rank} has {ranks[with_usual]['path']} (sha256 {usual})")
            else:
                lines.append(f"{where} has {subject} {values[index]}; {as_rank} has {usual}")
        if len(odd) > most:
            lines.append(f"and {len(odd) - most} more ranks differ in {subject}")
    return lines


def gather(comm, value):
    """A list of what each rank gives, which JSON can say. Collective."""
    # As JSON in plain buffers: nothing is unpickled from the wire, at start-up neither.
    from mpi4py import MPI

    data = json.dumps(value).encode()
    sizes = array("i", bytes(array("i").itemsize * comm.size))
    comm.Allgather(array("i", [len(data)]), sizes)
    received = bytearray(sum(sizes))
    comm.Allgatherv([data, MPI.BYTE], [received, sizes, MPI.BYTE])
    values, start = [], 0
    for size in sizes:
        values.append(json.loads(received[start:start + size]))
        start += size
    return values
