"""The process that waits for a rank's end and tells how it died.

dtorch_mpi/watcher.py starts it, without site packages and without the package's __init__. It
stays for as long as the job, once for each rank, so it imports little. A rank that finished is
left in silence; of those that did not, the first to die on this node is reported in one block on
stderr, with the ranks that the launcher killed afterwards in one line of it.

The watchers of a node meet in one folder, which holds for each rank

    rank-R.record   the flight record, removed by its watcher
    rank-R.alive    a fifo that hangs up when the rank ends
    rank-R.death    when and how it died, for the other watchers
    reported        made by the one that reports

Each holds a shared lock on the folder; the last to leave removes it.
"""

import _signal  # the signal module costs 5 ms and its enums
import fcntl
import os
import time

from dtorch_mpi import flight_record
from dtorch_mpi.process_end import ProcessEnd

# How long the watcher may outlive its rank, in seconds, whatever happens.
HARD_STOP = 2
# How long it waits for the other ranks of the node to be ended too.
SETTLE = 0.5
# An abort kills all ranks in any order: among deaths closer than this a known cause decides.
JITTER = 0.1


class Death:
    """How one rank ended, as its watcher found it.

    `when` is the watcher's monotonic clock. `before` and `after` are the ranks that it knew to
    have died before this one, and not before it.
    """

    __slots__ = ("rank", "when", "own", "text", "before", "after")

    def __init__(self, rank, when, own, text, before=(), after=()):
        self.rank = rank
        self.when = when
        self.own = own
        self.text = text
        self.before = before
        self.after = after

    def save(self, folder):
        path = os.path.join(folder, f"rank-{self.rank}.death")
        before, after = (",".join(map(str, ranks)) or "-" for ranks in (self.before, self.after))
        with open(path + ".new", "w") as file:
            file.write(f"{self.rank} {self.when} {int(self.own)} {before} {after} {self.text}")
        os.rename(path + ".new", path)

    @classmethod
    def load(cls, path):
        with open(path) as file:
            rank, when, own, before, after, text = file.read().split(" ", 5)
        before, after = (() if ranks == "-" else tuple(map(int, ranks.split(",")))
                         for ranks in (before, after))
        return cls(int(rank), float(when), own == "1", text, before, after)


def first_of(deaths):
    """The death that was the cause of the others.

    The earliest; but when that was by the launcher's signal, one with a cause of its own that
    came at nearly the same time.
    """
    deaths = sorted(deaths, key=lambda death: death.when)
    # Watchers wake late and in any order on a busy machine: what the kernel told goes first.
    later = {rank for death in deaths for rank in death.after}
    later.update(death.rank for death in deaths if death.before)
    earliest = next((death for death in deaths if death.rank not in later), deaths[0])
    if earliest.own:
        return earliest
    for death in deaths:
        if death.own and death.when - earliest.when <= JITTER:
            return death
    return earliest


def shared_memory_of(pid):
    """The names in /dev/shm, but for their last digits, of what MPICH made for this process's job.

    Under srun they come from the ids of job and step, which a requeued job has again: MPI can't
    start in it where the first run was killed and has left them. And they take memory until then.
    """
    start = "/dev/shm/mpich_shm_"
    try:
        with open(f"/proc/{pid}/maps") as file:
            paths = {line[line.index(start):].rstrip() for line in file if start in line}
    except OSError:
        return ()
    return tuple({os.path.basename(path).rstrip("0123456789") for path in paths})


def remove_shared_memory(names):
    for name in os.listdir("/dev/shm") if names else ():
        if name.startswith(names):
            try:
                os.unlink(os.path.join("/dev/shm", name))
            except OSError:
                continue  # another rank's watcher has removed it


def signal_name(number):
    for name in dir(_signal):
        if name.startswith("SIG") and "_" not in name and getattr(_signal, name) == number:
            return name
    return f"signal {number}"


def oom_kills():
    """How many processes the kernel's out-of-memory killer has killed on this host."""
    try:
        with open("/proc/vmstat") as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def describe(status, record, new_oom_kills):
    """(how it died, whether by something of its own rather than the launcher's signal)."""
    signal = status & 0x7F if status is not None else 0
    if not signal and record is not None and record.signal:
        signal = record.signal
    cause = record.cause if record is not None else ""
    if signal:
        text = f"killed by signal {signal} ({signal_name(signal)})"
        own = signal_name(signal) not in ("SIGINT", "SIGTERM", "SIGKILL", "SIGHUP")
        if own and record is not None and record.signal == signal and record.fault_address:
            text += f" at address {record.fault_address:#x}"
        if signal_name(signal) == "SIGKILL" and new_oom_kills:
            own = True
            text += (f"; the kernel's out-of-memory killer has struck {new_oom_kills} times on "
                     "this host since the job began, so it is likely that memory ran out")
    elif status is not None:
        text = f"ended with exit code {status >> 8} before the job was finished"
        own = True
    else:
        text = "ended without a trace (SIGKILL, out of memory, or os._exit)"
        own = False
    if cause:
        # An abort ends the rank by the launcher's signal or, with Open MPI, by its exit code.
        text = f"{text}; cause: {cause}" if own and signal else f"{cause} (then {text})"
    return text, own or bool(cause)


def block(death, others, record, rank, world, host):
    """The text of one report, each line marked as ours."""
    lines = [f"rank {rank} of {world} on host {host} died: {death.text}"]
    if record is None:
        lines[0] += "; no flight record"
    elif not record.last:
        lines[0] += f"; no operator yet (it was {record.state})"
    else:
        lines[0] += f"; last operator: {record.last[0]}"
        if len(record.last) > 1:
            lines.append("  before it: " + "; ".join(str(op) for op in record.last[1:4]))
        lines.append(f"  state {record.state}, role {record.role or 'unknown'}, pid {record.pid}")
    own = [other for other in others if other.own]
    for other in own[:4]:
        lines.append(f"  after it rank {other.rank} died: {other.text}")
    killed = sorted(other.rank for other in others if not other.own)
    if killed:
        shown = ", ".join(map(str, killed[:16])) + (", ..." if len(killed) > 16 else "")
        ranks = "rank" if len(killed) == 1 else "ranks"
        lines.append(f"  ended from outside after it, on this host: {ranks} {shown}")
    if not death.own and len(others) + 1 < world:
        lines.append("  if another host reports a cause, that one came first")
    return "".join(f"[dtorch-mpi] {line}\n" for line in lines)


def tell(text, descriptors, crash_log):
    """Write the text to the first descriptor that takes it, else append it to crash_log."""
    data = text.encode()
    for fd in descriptors:
        try:
            while data:
                try:
                    data = data[os.write(fd, data):]
                except BlockingIOError:
                    time.sleep(0.01)
            return
        except OSError:
            continue
    try:
        with open(crash_log, "ab") as file:
            file.write(data)
    except OSError:
        pass


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


def watch(record_path, pid, rank, world, host, launcher, launcher_fd, crash_log):
    """Wait for the end of `pid` in a process of its own, and tell; returns in neither.

    launcher: the pid of the process that started the rank, with which it is ended; 0 for none.
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
    # The rank waits for the parent, so that it runs on only once it is watched; and has no child.
    if os.fork():
        os._exit(0)

    end.wait()
    when = time.monotonic()
    _signal.alarm(HARD_STOP)
    status = end.status()
    record = record_of(record_fd) if record_path else None
    if record is None or record.state != "finished":
        remove_shared_memory(shared_memory)
        text, own = describe(status, record, oom_kills() - kills_before)
        if end.orphaned:
            text += f", as its launcher (pid {launcher}) had ended"
        death = Death(rank, when, own, text, end.before, end.after)
        if not record_path:
            tell(block(death, [], None, rank, world, host), (launcher_fd, 2), crash_log)
        else:
            report(death, folder, record, world, host, (launcher_fd, 2), crash_log)
    if record_path:
        leave(folder, folder_fd, record_path)
    os._exit(0)


def records(folder):
    """(rank, path) of each record in the folder."""
    return [(int(name[len("rank-"):-len(".record")]), os.path.join(folder, name))
            for name in os.listdir(folder) if name.endswith(".record")]


def mark_of(record_path):
    return record_path.removesuffix(".record") + ".alive"


def record_of(fd):
    try:
        return flight_record.read(fd)
    except ValueError:
        return None  # it died before the header was written


def report(death, folder, record, world, host, descriptors, crash_log):
    reported = os.path.join(folder, "reported")
    death.save(folder)
    if not os.path.exists(reported):
        deaths = wait_for_others(folder, SETTLE)
        first = first_of(deaths.values()).rank == death.rank
        # The one that should report may have been stopped, or see it otherwise.
        if not first and _appears(reported, SETTLE):
            return
        try:
            os.close(os.open(reported, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            pass
        else:
            others = [deaths[rank] for rank in sorted(deaths) if rank != death.rank]
            tell(block(death, others, record, death.rank, world, host), descriptors, crash_log)
            return
    if death.own:
        tell(f"[dtorch-mpi] after it rank {death.rank} of {world} on host {host} died too: "
             f"{death.text}\n", descriptors, crash_log)


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
