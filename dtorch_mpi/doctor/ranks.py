"""Checks between the ranks of a job, and the report of each to rank 0."""

import ctypes
import faulthandler
import json
import os
import shutil
import socket
import time
import warnings
from pathlib import Path

from dtorch_mpi.doctor.result import LIMIT, Result, failed, passed, warned
from dtorch_mpi.launch import agreement, guard, library
from dtorch_mpi.launch.announcement import Place, oversubscription
from dtorch_mpi.launch.cpus import affinity, ranges, worker_threads
from dtorch_mpi.settings import from_environment

REPORT, DECISION = 1, 2  # tags
OTHER_FOLDER = ("name a folder that can be written, on a file system that all nodes share, with "
                "--folder PATH: checkpoints need one; on Lustre try HDF5_USE_FILE_LOCKING=FALSE")


class Ranks:
    """This rank and the others; one process alone where there is no launcher."""

    def __init__(self, launch, folder):
        self.launch = launch if launch is not None and launch.size > 1 else None
        self.rank, self.size = launch[1::-1] if self.launch else (0, 1)
        self.index_on_node = 0
        self._comm = None
        self._folder = folder
        self._made = None

    def meet(self):
        """Start MPI, and see whether it knows all the ranks that the launcher started."""
        loaded = library.loaded_library()
        from mpi4py import MPI

        guard.check_launcher(self.launch, loaded)
        # mpi4py's own function would hold the interpreter while it waits for the other ranks.
        ctypes.CDLL(MPI.__file__).MPI_Init_thread(
            None, None, MPI.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
        guard.check_world(self.launch, MPI.COMM_WORLD.size, loaded)
        self._comm = MPI.COMM_WORLD.Dup()
        self._node = self._comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank)
        self.index_on_node = self._node.rank
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            return failed("this MPI has no MPI_THREAD_MULTIPLE",
                          "use a build of MPI with thread support")
        return passed(f"{self.launch.launcher} started {self.size} processes, and MPI knows "
                      f"{self._comm.size}")

    @property
    def have_met(self):
        return self._comm is not None

    def ring(self):
        """A megabyte from each rank to the next."""
        from mpi4py import MPI

        block = 1 << 20
        sent, received = bytes([self.rank % 251]) * block, bytearray(block)
        before, after = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        self._comm.Sendrecv([sent, MPI.BYTE], after, 0, [received, MPI.BYTE], before, 0)
        if received != bytes([before % 251]) * block:
            return failed(f"what came from rank {before} is not what it sent",
                          "the network or its driver is faulty")
        return passed("1 MiB from each rank to the next")

    def write_hdf5(self):
        """A file in the folder for checkpoints, written, synced and read."""
        import h5py

        name = f".dtorch-doctor-{socket.gethostname()}-{os.getpid()}"
        name = self._comm.bcast(name) if self.have_met else name
        self._made = Path(self._folder, name)
        path = self._made / f"{self.rank}.h5"
        try:
            self._made.mkdir(exist_ok=True)
            with h5py.File(path, "w") as file:
                file["rank"] = [self.rank] * 1000
            with path.open("rb+") as file:
                os.fsync(file)
            found = read_rank(path)
        except OSError as error:
            return failed(f"{os.path.abspath(self._folder)}: {error}", OTHER_FOLDER)
        if found != self.rank:
            return failed(f"{path} has not what was written", OTHER_FOLDER)
        return passed(f"written and read in {os.path.abspath(self._folder)}")

    def facts(self):
        """What rank 0 compares."""
        from dtorch_mpi.launch.placement import visible_gpus

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names that are no settings: told by now
            setting = from_environment().threads
        masks = dict.fromkeys([0], affinity())
        if self.have_met:
            masks = dict(self._node.allgather((self.rank, affinity())))
        controller = masks.pop(0, frozenset()) if len(masks) > 1 else frozenset()
        return {
            "host": socket.gethostname(), "cpus": sorted(affinity()),
            "cpus_of_node": os.cpu_count(),
            "threads": worker_threads(setting, masks.values(), controller),
            "gpus": visible_gpus(), "versions": agreement.facts(),
        }  # fmt: skip

    def leave(self, code, is_sound):
        """End this process, and with it the other ranks where they may wait for it."""
        if self.have_met and is_sound:
            from mpi4py import MPI

            faulthandler.dump_traceback_later(LIMIT, exit=True)
            MPI.Finalize()
        elif self.have_met:
            self._comm.Abort(code)
        os._exit(code)  # threads of checks may hang

    # ---- the report ----------------------------------------------------------------------------

    def send(self, report):
        """Give rank 0 what this one found."""
        from mpi4py import MPI

        self._sent = json.dumps(report).encode()
        self._comm.Isend([self._sent, MPI.BYTE], 0, REPORT)

    def receive(self, own):
        """A report by rank, of those that came in time."""
        reports = {0: json.loads(json.dumps(own))}
        until = time.monotonic() + LIMIT
        while len(reports) < self.size and time.monotonic() < until:
            for rank in set(range(self.size)) - reports.keys():
                if (text := self._message(rank, REPORT)) is not None:
                    reports[rank] = json.loads(text)
            time.sleep(0.01)
        for report in reports.values():
            report["results"] = {
                name: Result(*result) for name, result in report["results"].items()}
        return dict(sorted(reports.items()))

    def decide(self, goes_on):
        """Rank 0 tells the others whether the job shall be tried."""
        from mpi4py import MPI

        self._sent = b"1" if goes_on else b"0"
        for rank in range(1, self.size):
            self._comm.Isend([self._sent, MPI.BYTE], rank, DECISION)

    def decision(self):
        """What rank 0 decided; False where it does not answer."""
        until = time.monotonic() + 3 * LIMIT
        while time.monotonic() < until:
            if (text := self._message(0, DECISION)) is not None:
                return text == b"1"
            time.sleep(0.01)
        return False

    def _message(self, rank, tag):
        from mpi4py import MPI

        status = MPI.Status()
        if not self._comm.Iprobe(rank, tag, status):
            return None
        data = bytearray(status.Get_count(MPI.BYTE))
        self._comm.Recv([data, MPI.BYTE], rank, tag)
        return bytes(data)

    # ---- what rank 0 sees of all ---------------------------------------------------------------

    def shared_folder(self):
        """Whether rank 0 sees the files that the others wrote."""
        missing = [rank for rank in range(self.size)
                   if not (path := self._made / f"{rank}.h5").exists() or read_rank(path) != rank]
        folder = os.path.abspath(self._folder)
        if missing:
            which = f"rank{'' if len(missing) == 1 else 's'} {ranges(missing)}"
            return failed(f"rank 0 does not see in {folder} what {which} wrote", OTHER_FOLDER)
        return passed(f"rank 0 sees what all ranks wrote in {folder}")

    def clean_up(self):
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)


def read_rank(path):
    import h5py

    with h5py.File(path) as file:
        return int(file["rank"][-1])


def same_versions(facts):
    differences = agreement.disagreements([
        {"host": fact["host"], "path": "", "facts": fact["versions"]} for fact in facts.values()])
    if differences:
        return failed("\n".join(differences), "use one environment on all hosts")
    return passed("the same dtorch-mpi, torch and Python on all ranks")


def threads_and_cores(facts):
    """Whether ranks wait for each other's cores. facts: by rank."""
    nodes = {}
    for rank, fact in facts.items():
        nodes.setdefault(fact["host"], {})[rank] = fact
    for host, members in nodes.items():
        for rank, fact in members.items():
            cpus = set(fact["cpus"])
            crowd = [other for other, its in members.items() if set(its["cpus"]) <= cpus]
            # The controller, rank 0, mostly waits.
            if len(set(crowd) - {0}) > len(cpus) and len(crowd) > 1:
                bound = len(cpus) < fact["cpus_of_node"]
                how = "are bound to" if bound else "share"
                return (failed if bound else warned)(
                    f"ranks {ranges(crowd)} on {host} {how} {len(cpus)} of "
                    f"{fact['cpus_of_node']} CPUs ({ranges(cpus)}); rank {rank} has no other",
                    "mpirun --bind-to none (Open MPI), srun --cpus-per-task=N with "
                    "SRUN_CPUS_PER_TASK set" if bound else "start fewer ranks")
    workers = [Place(fact["host"], fact["host"], frozenset(fact["cpus"]), *fact["threads"], "")
               for rank, fact in facts.items() if rank > 0 or len(facts) == 1]
    if text := oversubscription(workers):
        reason, fix = text.split("; ")
        return warned(reason, fix)
    numbers = ranges({worker.threads for worker in workers})
    return passed(f"threads of each worker: {numbers}, from "
                  f"{' or '.join(sorted({worker.source for worker in workers}))}")


def devices(facts):
    """Whether each worker has a GPU that its peers see too, where there are GPUs."""
    nodes = {}
    for rank, fact in facts.items():
        nodes.setdefault(fact["host"], {})[rank] = fact["gpus"]
    if not any(gpus for members in nodes.values() for gpus in members.values()):
        return passed("no GPU: operators run on CPUs")
    for host, members in nodes.items():
        workers = members if len(set(members.values())) == 1 and len(members) in (
            members.values()) else {rank: n for rank, n in members.items() if rank > 0}
        for rank, gpus in workers.items():
            if gpus == 0:
                return failed(f"rank {rank} on {host} sees no GPU, others do",
                              "give each node as many GPUs as workers: --gpus-per-node")
            if gpus < len(workers):
                return warned(
                    f"rank {rank} on {host} sees {gpus} GPUs, and its node has {len(workers)} "
                    "workers: they share them, or can't reach each other's memory",
                    "--gpus-per-node=N --gpu-bind=none, not --gpus-per-task; as many workers as "
                    "GPUs")
    return passed("each rank sees a GPU for each worker of its node")
