"""The process that waits for a rank's end and tells how it died.

watcher.py starts it, without site packages and without the package's __init__. It
stays for as long as the job, once for each rank, so it imports little. A rank that finished is
left in silence; of those that did not, the first to die on this node is reported in one block on
stderr, with the ranks that the launcher killed afterwards in one line of it.

The watchers of a node meet in one folder, which holds for each rank

    rank-R.record   the flight record, removed by its watcher
    rank-R.alive    a fifo that hangs up when the rank ends
    rank-R.death    when and how it died, for the other watchers
    rank-R.stacks   where the rank writes its stacks when it is asked to
    reported        made by the one that reports

Each holds a shared lock on the folder; the last to leave removes it. Of several nodes, the watchers
that would tell meet at rank 0's (death_hub.py).
"""

import _signal  # the signal module costs 5 ms and its enums
import fcntl
import os
import time

from dtorch_mpi.watching import death_hub, flight_record
from dtorch_mpi.watching.death_report import (
    Death,
    Voice,
    block,
    describe,
    first_of,
    oom_kills,
    tell_launch,
)
from dtorch_mpi.watching.leftover_memory import remove_shared_memory, shared_memory_of
from dtorch_mpi.watching.process_end import ProcessEnd
from dtorch_mpi.watching.rank_watchdog import RankWatchdog

# How long the watcher may outlive its rank, in seconds, whatever happens.
HARD_STOP = 3
# How long it waits for the other ranks of the node to be ended too.
SETTLE = 0.5


def wait_for_others(folder, seconds):
    """Wait until every rank whose record is here has died too; returns all deaths by rank."""
    until = time.monotonic() + seconds
    while True:
        deaths = {}
        for name in os.listdir(folder):
            if name.endswith(".death"):
                death = Death.load(os.path.join(folder, name))
                deaths[death.rank] = death
        alive = any(rank not in deaths for rank, _ in records(folder))
        if not alive or time.monotonic() > until:
            return deaths
        time.sleep(0.01)


def watch(record_path, pid, rank, world, host, launcher, launcher_fd, crash_log, seconds, hub_fd,
          hub_address, token, num_nodes):
    """Wait for the end of `pid` in a process of its own, and tell; returns in neither.

    launcher: the pid of the process that started the rank, with which it is ended; 0 for none.
    seconds: after how long at one record a worker is taken for stuck, and ended; 0: never.
    hub_fd, hub_address, token: of the hub, on rank 0 and elsewhere; -1 and empty on one node.
    num_nodes: of the job.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        _signal.signal(getattr(_signal, name), _signal.SIG_IGN)
    end = ProcessEnd(pid)
    if launcher:
        end.end_with(launcher)
    record_fd = folder_fd = -1
    folder = os.path.dirname(record_path)
    if record_path:
        record_fd = os.open(record_path, os.O_RDONLY)
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(folder_fd, fcntl.LOCK_SH)
        # Of any two ranks, the one whose watcher starts later sees the other's record.
        for other, path in records(folder):
            end.watch_mark(None if other == rank else other, mark_of(path))
    shared_memory = shared_memory_of(pid)
    kills_before = oom_kills()
    hub = None
    if hub_fd >= 0:
        hub = death_hub.Hub(hub_fd, token, num_nodes)
        end.call_when_ready(hub_fd, hub.take)
    # The rank waits for the parent, so that it runs on only once it is watched; and has no child.
    if os.fork():
        os._exit(0)

    dog = RankWatchdog(pid, rank, record_fd, stacks_of(record_path), lambda: records(folder),
                       seconds)
    end.wait(dog.interval, dog.look)
    when = time.monotonic()
    _signal.alarm(HARD_STOP + (0 if hub is None else death_hub.LINGER))
    voice = Voice((launcher_fd, 2), crash_log, hub, hub_address, token)
    status = end.status()
    record = record_of(record_fd) if record_path else None
    if record is None or record.state not in ("finished", "told"):
        remove_shared_memory(shared_memory)
    if record is not None and record.state == "told":
        death = Death(rank, when, True, record.cause, end.before, end.after)
        death.save(folder)
        take_report(folder)
        tell_launch(death.rank, death.own, death.text)
        if hub is not None:
            hub.add(when, rank, True, record.cause, "")
            voice.close()
            hub.linger()  # others need not tell either
    elif record is None or record.state != "finished":
        text, own = describe(status, record, oom_kills() - kills_before)
        if end.orphaned:
            text += f", as its launcher (pid {launcher}) had ended"
        if dog.text:
            text, own = dog.text, True
        death = Death(rank, when, own, text, end.before, end.after)
        if not record_path:
            voice.report(death, lambda is_known: block(
                death, [], None, rank, world, host, is_known=is_known))
        else:
            report(death, folder, record, world, host, voice, dog.details)
        if hub is not None:
            voice.tell_first()
    if record_path:
        leave(folder, folder_fd, record_path)
    os._exit(0)


def records(folder):
    """(rank, path) of each record in the folder."""
    return [(int(name[len("rank-"):-len(".record")]), os.path.join(folder, name))
            for name in os.listdir(folder) if name.endswith(".record")]


def mark_of(record_path):
    return record_path.removesuffix(".record") + ".alive"


def stacks_of(record_path):
    return record_path.removesuffix(".record") + ".stacks"


def record_of(fd):
    try:
        return flight_record.read(fd)
    except ValueError:
        return None  # it died before the header was written


def take_report(folder):
    """Whether this watcher is the first of the node that wants to tell."""
    path = os.path.join(folder, "reported")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def report(death, folder, record, world, host, voice, stuck):
    reported = os.path.join(folder, "reported")
    death.save(folder)
    if not os.path.exists(reported):
        deaths = wait_for_others(folder, SETTLE)
        first = first_of(deaths.values()).rank == death.rank
        # The one that should report may have been stopped, or see it otherwise.
        if not first and _appears(reported, SETTLE):
            return
        if take_report(folder):
            others = [deaths[rank] for rank in sorted(deaths) if rank != death.rank]
            voice.report(death, lambda is_known: block(
                death, others, record, death.rank, world, host, stuck, is_known))
            return
    if death.own:
        voice.tell(f"[dtorch-mpi] after it rank {death.rank} of {world} on host {host} died too: "
                   f"{death.text}\n")


def _appears(path, seconds):
    until = time.monotonic() + seconds
    while not os.path.exists(path):
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def remove_folder(path):
    for name in os.listdir(path):
        os.unlink(os.path.join(path, name))
    os.rmdir(path)


def leave(folder, folder_fd, record_path):
    try:
        os.unlink(mark_of(record_path))
        os.unlink(record_path)
        # Fails while another rank's watcher holds its shared lock; the last one gets it.
        fcntl.flock(folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not records(folder):
            remove_folder(folder)
    except OSError:
        pass
