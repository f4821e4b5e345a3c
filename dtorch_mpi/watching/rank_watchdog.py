"""The watcher's look at a rank that lives: whether it is stopped, or stands still in a record.

A worker is stuck when it has been in one operator or kernel for the watchdog's time, or stopped by
a signal for as long. One that waits for others, in a collective, is not: the watcher of the rank
that they wait for tells. So each watcher decides by itself, and one of them does.
"""

import _signal
import os
import time

from dtorch_mpi.watching import flight_record
from dtorch_mpi.watching.process_end import stat_fields
from dtorch_mpi.watching.watchdog import Standstill, end_of_text, interval

# The signal upon which a rank writes its stacks (mpi_runtime.py), and for how long they may take.
STACKS_SIGNAL = _signal.SIGRTMAX - 9
STACKS_SECONDS = 1.5
STACK_LINES = 60
# What waits for a stopped rank in a kernel or an operator of its own must not seem to be the cause.
STOPPED_FIRST = 1.0
SYSTEM_STATES = {"R": "running", "S": "sleeping", "D": "in the kernel, can't be interrupted",
                 "T": "stopped", "t": "stopped by a debugger", "Z": "ended"}


class RankWatchdog:
    """Looks at one rank, every `interval` seconds.

    record_fd: its flight record. others: a function that gives (rank, path) of all records here.
    seconds: how long a worker may be at one record; 0: for ever. Attributes, once it has ended
    the rank: `text`, why, and `details`, lines with what can be seen of it.
    """

    def __init__(self, pid, rank, record_fd, stacks, others, seconds):
        self._pid = pid
        self._rank = rank
        self._record_fd = record_fd
        self._stacks = stacks
        self._others = others
        self._seconds = seconds
        self.interval = interval(seconds) if seconds and record_fd >= 0 else None
        self._stood = Standstill(longest=2 * (self.interval or 0))
        self.text = ""
        self.details = []

    def look(self):
        """End the rank if it is stuck."""
        if self.text:
            return
        counts = flight_record.counts_of(self._record_fd)
        fields = stat_fields(self._pid)
        if fields is None or not counts:
            return  # it ends, or has no worker
        state = fields[0]
        # A stopped rank goes on where it was: its records are counted anew then.
        marks = dict.fromkeys(counts) if state in "Tt" else dict(counts)
        # Rank 0 runs the program: whoever stops it knows.
        marks["stopped"] = True if state == "T" and self._rank != 0 else None
        stood = self._stood.look(time.monotonic(), marks)
        if stood.pop("stopped") >= self._seconds:
            if self._all_are_stopped():
                self._stood.forget("stopped")  # the job is suspended
            else:
                self._end(f"stopped by a signal (SIGSTOP, say) for {self._seconds} s")
            return
        for key, seconds in stood.items():
            if seconds < self._seconds + min(STOPPED_FIRST, self._seconds / 2):
                continue
            activity = self._activity(key)
            if activity is not None and activity.doing and not activity.wait:
                self._end(f"for {seconds:.0f} s in {activity.doing}", activity)
                return

    def _activity(self, key):
        return next((activity for activity in flight_record.read(self._record_fd).activities
                     if (activity.graph, activity.thread) == key), None)

    def _all_are_stopped(self):
        pids = [record.pid for record in self._records().values()]
        return bool(pids) and all((stat_fields(pid) or "Z")[0] == "T" for pid in pids)

    def _records(self):
        """The records of the other ranks of this node."""
        found = {}
        for rank, path in self._others():
            if rank != self._rank:
                try:  # noqa: SIM105 -- contextlib costs too much
                    found[rank] = flight_record.read(path)
                except (OSError, ValueError):
                    pass  # it begins or ends
        return found

    def _end(self, why, activity=None):
        record = flight_record.read(self._record_fd)
        if activity is None:
            busy = [one.wait or one.doing for one in record.activities if one.kind]
            if busy:
                why += f", in {busy[0]}"
            else:
                last = f"; last operator: {record.last[0]}" if record.last else ""
                why += f", while it waited for work{last}"
        thread = activity.thread if activity is not None else self._pid
        details = [f"state {record.state}, role {record.role}, pid {self._pid}"]
        for rank, other in sorted(self._records().items())[:8]:
            for one in other.activities:
                if one.wait:
                    details.append(f"rank {rank} {one.wait} (it is at {one.doing})")
        details.append(system_view(self._pid, thread))
        if activity is not None:
            details += self._stacks_of(thread)
        self.details = details
        self.text = f"{why}; {end_of_text(self._seconds)}"
        os.kill(self._pid, _signal.SIGKILL)

    def _stacks_of(self, thread):
        """Lines of the rank's Python stacks and the thread's native one, which the rank writes."""
        import ctypes  # costs more than all else here, and is needed once at most

        try:
            size = os.path.getsize(self._stacks)
            if ctypes.CDLL(None).tgkill(self._pid, thread, STACKS_SIGNAL) != 0:
                return []
            until = time.monotonic() + STACKS_SECONDS
            written = size
            while time.monotonic() < until:
                time.sleep(0.2)
                before, written = written, os.path.getsize(self._stacks)
                if written == before > size:
                    break
            with open(self._stacks, errors="replace") as file:
                file.seek(size)
                lines = file.read().splitlines()
        except (OSError, AttributeError):
            return []
        if not lines:
            return ["it did not write its stacks"]
        return ["its stacks, of Python and of the thread:",
                *(f"  {line}" for line in lines[:STACK_LINES])]


def system_view(pid, thread):
    """What the operating system shows of a thread, as a line."""
    parts = []
    try:
        with open(f"/proc/{pid}/task/{thread}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        parts.append(f"{SYSTEM_STATES.get(fields[0], fields[0])}, {used:.1f} s of CPU time so far")
        for name, what in (("wchan", "in"), ("syscall", "system call")):
            with open(f"/proc/{pid}/task/{thread}/{name}") as file:
                text = file.read().split()
            if text and text[0] not in ("0", "running"):
                parts.append(f"{what} {text[0]}")
    except OSError as error:
        parts.append(str(error))
    return f"the system's view of thread {thread}: " + ", ".join(parts)
