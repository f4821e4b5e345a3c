"""Deaths of ranks: which was first, how to say it, and where."""

import _signal  # the signal module costs 5 ms and its enums
import os
import time

from dtorch_mpi.watching import death_hub, flight_record

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


def last_words(record):
    """What the rank was at: the end of a report's first line, and more lines."""
    if record is None:
        return "no flight record", []
    busy = [activity for activity in record.activities if activity.kind]
    before = [str(op) for op in record.last[:4]]
    lines = []
    if busy:
        first = f"it was in {busy[0].doing}" + (f"; it {busy[0].wait}" if busy[0].wait else "")
        lines += [f"  and, in another graph, in {other.doing}" for other in busy[1:4]]
        if before and busy[0].kind == flight_record.OPERATOR:
            del before[0]
    elif before:
        first = f"last operator: {before.pop(0)}"
    else:
        return f"no operator yet (it was {record.state})", []
    if before:
        lines.append("  before it: " + "; ".join(before))
    lines.append(f"  state {record.state}, role {record.role or 'unknown'}, pid {record.pid}")
    return first, lines


def block(death, others, record, rank, world, host, stuck=(), is_known=True):
    """The text of one report, each line marked as ours.

    stuck: what was seen of a stuck rank. is_known: whether no other host can have an earlier cause.
    """
    if stuck:
        lines = [f"rank {rank} of {world} on host {host} is stuck: {death.text}"]
        lines += [f"  {line}" for line in stuck]
    else:
        first, more = last_words(record)
        lines = [f"rank {rank} of {world} on host {host} died: {death.text}; {first}", *more]
    own = [other for other in others if other.own]
    for other in own[:4]:
        lines.append(f"  after it rank {other.rank} died: {other.text}")
    killed = sorted(other.rank for other in others if not other.own)
    if killed:
        shown = ", ".join(map(str, killed[:16])) + (", ..." if len(killed) > 16 else "")
        ranks = "rank" if len(killed) == 1 else "ranks"
        lines.append(f"  ended from outside after it, on this host: {ranks} {shown}")
    if not death.own and not is_known:
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


def tell_launch(rank, own, text):
    """Tell `python -m dtorch_mpi launch --max-restarts` who died first on this host."""
    path = os.environ.get("DTORCH_DEATHS_FILE")
    if path:
        try:
            with open(path, "a") as file:
                file.write(f"{time.time()} {rank} {int(own)} {' '.join(text.split())}\n")
        except OSError:
            pass  # another host's folder


class Voice:
    """How a watcher tells: by itself, or through the hub of a job on several nodes."""

    def __init__(self, descriptors, crash_log, hub=None, hub_address="", token=""):
        self._descriptors = descriptors
        self._crash_log = crash_log
        self._hub = hub
        self._hub_address = hub_address
        self._token = token

    def tell(self, text):
        tell(text, self._descriptors, self._crash_log)

    def report(self, death, text_of):
        """Tell of the first death of this node. text_of: of whether no other node can know more."""
        if self._hub is not None:
            self._hub.add(death.when, death.rank, death.own, death.text, text_of(True))
            return
        if self._hub_address:
            age = time.monotonic() - death.when
            if death_hub.send(self._hub_address, self._token, age, death, text_of(True)):
                return
        tell_launch(death.rank, death.own, death.text)
        self.tell(text_of(not self._hub_address))

    def tell_first(self):
        """At the hub: tell of the first death of all nodes."""
        self._hub.settle()
        deaths = {Death(rank, when, own, text): report
                  for when, rank, own, text, report in self._hub.reports}
        if deaths:
            first = first_of(deaths)
            tell_launch(first.rank, first.own, first.text)
            self.tell(deaths[first])
        self.close()
        self._hub.linger()

    def close(self):
        """Let go of the rank's stderr, whose end a launcher awaits before it ends the others."""
        for fd in self._descriptors:
            if fd >= 0:
                os.close(fd)
        self._descriptors = ()
