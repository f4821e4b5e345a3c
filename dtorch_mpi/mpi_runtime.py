"""Start-up of a job under mpirun or srun: roles, links, and the worker ranks' whole life."""

import ctypes
import os
import signal
import socket
import sys
import time
import traceback

from . import _core, _worker, stop_requests
from ._collectives import delay_collectives
from .device_graphs import captures_for
from .device_groups import DeviceGroups, any_nccl, share_store
from .job import Runtime
from .kernels.graph_hosting import GraphHost
from .launch.agreement import check_agreement, gather
from .launch.announcement import Place, announce
from .launch.cpus import affinity, ranges, worker_threads
from .launch.guard import check_extensions, check_launcher, check_world
from .launch.library import loaded_library
from .launch.placement import (
    WorkerDevice,
    check_devices,
    cohost_default,
    device_for,
    visible_gpus,
    worker_device,
)
from .log import LOGGER
from .thread_workers import ThreadWorkers
from .watching import flight_record, watcher
from .watching.death_watch import records
from .watching.rank_watchdog import STACKS_SIGNAL

SHARED_BYTES = 8 << 20  # of rank 0's window for values from workers of its node
# Gives this rank, its host and its last operator as a text; None before the flight record begins.
whereabouts = None


def start(settings, launch):
    """On rank 0 returns the Runtime; a worker rank serves until the end and leaves."""
    import mpi4py

    # At the end of a forked child too, which would wait there for the other ranks.
    mpi4py.rc.finalize = False
    library = loaded_library()
    from mpi4py import MPI

    if MPI.Is_finalized():
        raise RuntimeError(
            "the workers of this job have ended with dtorch_mpi.shutdown(), and their processes "
            "with them: under a launcher they can't be started again"
        )
    check_extensions(library)
    from . import _mpi

    if not MPI.Is_initialized():
        check_launcher(launch, library)
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    check_world(launch, MPI.COMM_WORLD.size, library)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError(
            f"this MPI gives thread level {MPI.Query_thread()}, and dtorch_mpi needs "
            "MPI_THREAD_MULTIPLE: use a build of MPI with thread support, and import dtorch_mpi "
            "before anything that initializes MPI"
        )
    comm = MPI.COMM_WORLD.Dup()
    check_agreement(comm)
    # Ranks of one node, and which of them share rank 0's.
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    leader = node.bcast(comm.rank)
    leaders = comm.allgather(leader)
    on_first = [index for index, other in enumerate(leaders) if other == leaders[0]]
    num_nodes = len(set(leaders))
    cohost = settings.cohost
    if cohost is None:
        gpus = 0 if settings.device == "cpu" else visible_gpus()
        cohost = cohost_default(len(on_first), gpus)
    cohost = comm.bcast(bool(cohost))
    first_rank = 0 if cohost else 1
    ranks = list(range(first_rank, comm.size))
    same_node = [leaders[rank] == leaders[0] for rank in ranks]
    board = _mpi.SharedMemory(node, SHARED_BYTES) if leaders[comm.rank] == leaders[0] else None
    folder = watcher.job_folder()
    stop_requests.join_job(comm.Dup(), folder)
    delay_collectives(settings.collective_delay_us)
    of_node = [rank for rank in ranks if leaders[rank] == leader]
    own = None
    if comm.rank in ranks:
        own = worker_device(device_for(of_node.index(comm.rank), settings.device))
    devices = [WorkerDevice(*told) for told in gather(comm, own)[first_rank:]]
    check_devices(settings.device, devices)
    store = None
    if any_nccl(devices):
        store = share_store(comm, first_rank, same_node=leader == leaders[first_rank])
    groups = DeviceGroups(devices, _mpi.group_maker(comm, first_rank), store)
    on_node = [index for index, other in enumerate(leaders) if other == leader]
    masks = dict(zip(on_node, node.allgather(affinity()), strict=True))
    threads = worker_threads(settings.threads, [masks.pop(rank) for rank in of_node],
                             *masks.values())
    _announce(comm, settings, leader, threads, ranks, same_node, devices)
    threads = threads.number
    worker = comm.rank - first_rank
    if comm.rank > 0:
        LOGGER.info("worker %d: %s, %d threads an operator, CPUs %s",
                    worker, own.device, threads, ranges(affinity()))
        try:
            _serve(comm, worker, own.device, ranks, board, groups, settings, threads,
                   folder, num_nodes)
        except BaseException as error:
            # Rank 0 and the others would wait for this one for ever.
            traceback.print_exc()
            _core.flight_failed(f"{type(error).__name__}: {error}")
            sys.stderr.flush()
            comm.Abort(1)

    _begin_flight(comm, folder, "client", settings, num_nodes, by_client=not cohost)
    hosted = None
    if cohost:
        hosted = ThreadWorkers(0, [own.device], len(ranks), settings, threads, groups.maker(),
                               in_flight=True)  # fmt: skip
    remote = None  # the main graph's link

    def links_of(graph):
        nonlocal remote
        links = [hosted.link_for(graph)] if hosted else []
        if comm.size > 1:
            link = _mpi.MPILink(comm, ranks, same_node, board if graph == 0 else None,
                                settings.home, settings.spins, graph)
            links.append(link)
            if graph == 0:
                remote = link
        return links

    def stop():
        if hosted:
            hosted.join()
        # Futures that the program still holds: a worker that has yet to send can't leave.
        while remote is not None and not remote.receive_all(0.1):
            pass
        groups.shutdown()  # after that: a worker that has yet to send does not come to it
        own = comm.rank
        _finish(comm, remote, board)
        if running.leaves_last:
            _wait_for_other_ranks(folder, own, several_nodes=num_nodes > 1)

    def end_failed_job():
        """Whether all ranks could leave in good order within seconds."""
        return _finish(comm, remote, board, limit=3)

    running = Runtime(settings, hosted, links_of, devices, stop)
    running.end_job = end_failed_job
    running.first_rank = first_rank
    running.start()
    return running


def _announce(comm, settings, leader, threads, ranks, same_node, devices):
    """Say on rank 0 what the workers have. Collective."""
    places = gather(comm, [leader, socket.gethostname(), sorted(affinity()), *threads])
    if comm.rank > 0:
        return
    workers = []
    for rank, near, device in zip(ranks, same_node, devices, strict=True):
        node, host, cpus, number, source = places[rank]
        shared = near and settings.home != "network"
        home = "memory" if rank == 0 else "shared" if shared else "network"
        workers.append(Place(node, host, frozenset(cpus), number, source, home, device))
    announce(workers)


def finalize():
    """Leave MPI with all ranks where the job came to no other end: its start has failed."""
    from mpi4py import MPI

    if MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.Finalize()


def abort(code):
    """Have the launcher end all ranks: if this one just left, MPICH's may end its node only."""
    from mpi4py import MPI

    if MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.COMM_WORLD.Abort(code)


def _serve(comm, worker, device, ranks, board, groups, settings, threads, folder, num_nodes):
    from . import _mpi

    # Rank 0 decides what a Ctrl-C means; the launcher sends it to all.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serving = None  # the main graph's
    maker = groups.maker()

    def make(index, graph, one_stream):
        link = _mpi.MPIWorkerLink(comm, index, ranks, board, settings.spins, graph)
        made = _worker.Worker(
            index, device, socket.gethostname(), link.worker_end(), maker, num_workers=len(ranks),
            one_stream=one_stream, graph=graph, beside=serving,
            captures=captures_for(device, settings.cuda_graphs),
        )  # fmt: skip

        if graph != 0:
            made.note_flight()

        def drain():
            while not link.drain(0.1):
                pass

        return made, drain

    def failed(error):
        _core.flight_failed(f"{type(error).__name__}: {error}")
        traceback.print_exc()
        sys.stderr.flush()
        comm.Abort(1)

    serving, drain = make(worker, 0, settings.streams == "one")
    graphs = GraphHost(make, threads, failed)
    _begin_flight(comm, folder, f"worker {worker}", settings, num_nodes, by_client=False)
    serving.note_flight()
    serving.run(threads)
    graphs.stop()
    graphs.join()
    drain()
    groups.shutdown()
    _finish(comm, None, board)
    # Rank 0's exit code is the job's. When it is not 0, launchers end whoever is still there, and
    # srun would give the code of that signal.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: the user's program above this call must not go on, not even its handlers.
    # Nor os._exit: without the C library's exit handlers MPICH's launcher takes the rank for
    # one that died, and kills the others (7 of 25 runs, also of a program with nothing else).
    ctypes.CDLL(None).exit(0)


def _begin_flight(comm, folder, role, settings, num_nodes, *, by_client):
    """Start this rank's flight record and the process that reads it should this one die."""
    global whereabouts
    host = socket.gethostname()
    path = f"{folder}/rank-{comm.rank}.record" if folder else ""
    in_file = _core.open_flight_record(path, comm.rank, comm.size, host, role, by_client=by_client)
    if in_file:
        _core.answer_stack_requests(STACKS_SIGNAL, watcher.write_stacks(path))
    watcher.start(
        path if in_file else None, pid=os.getpid(), rank=comm.rank, world=comm.size, host=host,
        watchdog_seconds=settings.watchdog_seconds,
        hub=watcher.meet_at_hub(comm, host) if num_nodes > 1 else None, num_nodes=num_nodes,
    )  # fmt: skip
    place = f"rank {comm.rank} of {comm.size} on host {host}"

    def whereabouts():
        last = flight_record.read(path).last if in_file else []
        return f"{place}; last operator: {last[0]}" if last else f"{place}; no operator yet"


def _wait_for_other_ranks(folder, own, several_nodes):
    """Let them end first: srun kills those that are left once one has ended with a code."""
    until = time.monotonic() + 10
    while folder and any(rank != own for rank, _ in records(folder)):
        if time.monotonic() > until:
            return
        time.sleep(0.01)
    if several_nodes:
        time.sleep(1)  # nothing here tells of those


def _finish(comm, link, board, limit=None):
    """Leave MPI with all ranks; False if they did not come within `limit` seconds."""
    from mpi4py import MPI

    until = None if limit is None else time.monotonic() + limit
    while link is not None and not link.drain(0.1):
        if until is not None and time.monotonic() > until:
            return False
    # A plain barrier may burn a core for as long as the slowest rank works.
    request = comm.Ibarrier()
    while not request.Test():
        if until is not None and time.monotonic() > until:
            return False
        time.sleep(0.0005)
    if comm.rank == 0:
        stop_requests.hear_the_last()
        if link is not None:
            link.detach()
    if board is not None:
        board.free()
    MPI.Finalize()
    _core.flight_finished()
    return True
