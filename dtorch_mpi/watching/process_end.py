"""The end of a process that is not our child: when, in which order, and how."""

import _signal  # the signal module costs 5 ms and its enums
import fcntl
import os
import resource
import select
import struct
import time

# How long a process may outlive its launcher, in seconds, before SIGTERM and then before SIGKILL.
ORPHAN_GRACE = (1, 5)


def hold_mark(path):
    """Make a fifo that the kernel hangs up at this process's end; returns the descriptor held.

    Its number is high: a process that is killed closes its files from the highest down, so the
    mark falls before the launcher hears of the end from a closed socket, and kills the others.
    """
    os.mkfifo(path, 0o600)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 500 if limit < 0 else min(500, limit // 2))
    os.close(fd)
    # A forked child would keep it up.
    os.register_at_fork(after_in_child=lambda: os.close(high))
    return high


def has_ended(path):
    """Whether the process that held the mark at `path` has ended."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # its watcher has removed it
    try:
        return os.read(fd, 1) == b""
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


class ProcessEnd:
    """Waits for one process, and tells which others ended before it.

    Attributes, after wait(): `before` and `after`, the names of watch_mark()s that fell before
    this process's own, and of those that had not fallen then; `orphaned`, whether it outlived its
    launcher and was ended for that.
    """

    def __init__(self, pid):
        self._pid = pid
        self._pidfd = open_pidfd(pid)
        self._began = stat_fields(pid)
        self._marks = {}
        self._others = {}  # descriptor -> what is called when it is readable
        self._launcher = None
        self.before = ()
        self.after = ()
        self.orphaned = False
        # epoll reports in the order in which things happened, however late we wake.
        self._epoll = select.epoll()
        if self._pidfd is not None:
            self._epoll.register(self._pidfd, select.EPOLLIN)

    def watch_mark(self, name, path):
        """Note when the mark at `path` falls; the name None stands for this process's own."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return  # that rank has ended and is told of
        self._marks[fd] = name
        self._epoll.register(fd, 0)  # a hang-up is always reported

    def end_with(self, launcher):
        """End the process in wait() should it outlive this other one, by which it was started.

        Most launchers see to it that no rank is left behind; Open MPI's, when killed, does not.
        Without pidfds (before Linux 5.3) nothing is done.
        """
        if self._pidfd is not None:
            self._launcher = open_pidfd(launcher)
        if self._launcher is not None:
            self._epoll.register(self._launcher, select.EPOLLIN)

    def call_when_ready(self, fd, function):
        """In wait(), call the function when the descriptor is readable."""
        self._others[fd] = function
        self._epoll.register(fd, select.EPOLLIN)

    def wait(self, every=None, look=None):
        """Wait for the end; meanwhile call look(), where given, about every `every` seconds."""
        fallen = []
        ended = False
        due = []  # (when, signal) for a process that has no launcher any more
        next_look = None if every is None else time.monotonic() + every
        while not ended:
            timeout = -1 if self._pidfd is not None else 0.05
            times = [when for when, _ in due[:1]] + ([] if next_look is None else [next_look])
            if times:
                timeout = max(0, min(times) - time.monotonic())
            events = self._epoll.poll(timeout, len(self._marks) + len(self._others) + 2)
            now = time.monotonic()
            if due and not events and now >= due[0][0]:
                self._send(due.pop(0)[1])
            if next_look is not None and not events and now >= next_look:
                look()
                next_look = time.monotonic() + every
            for fd, _ in events:
                if fd == self._pidfd:
                    ended = True
                elif fd in self._others:
                    self._others[fd]()
                elif fd == self._launcher:
                    self._epoll.unregister(fd)
                    signals = (_signal.SIGTERM, _signal.SIGKILL)
                    due = [(now + grace, number)
                           for grace, number in zip(ORPHAN_GRACE, signals, strict=True)]
                else:
                    fallen.append(self._marks[fd])
                    self._epoll.unregister(fd)
            ended = ended or self._pidfd is None and self._has_ended()
        if None in fallen:
            self.before = tuple(fallen[:fallen.index(None)])
            self.after = tuple(name for name in self._marks.values()
                               if name is not None and name not in self.before)

    def status(self):
        """The wait status, or None where no one tells it."""
        for _ in range(2):
            fields = stat_fields(self._pid)
            if fields is not None and fields[0] == "Z":
                return int(fields[-1])
            if self._pidfd is None:
                return None
            # Once the parent has taken it, Linux 6.15 and later keep it with the pidfd.
            status = _status_of_pidfd(self._pidfd)
            if status is not None:
                return status
        return None

    def _send(self, number):
        try:
            _signal.pidfd_send_signal(self._pidfd, number)
            self.orphaned = True
        except OSError:
            pass  # it has just ended

    def _has_ended(self):
        now = stat_fields(self._pid)
        # The start time tells a new process of the same pid.
        return (self._began is None or now is None or now[0] == "Z"
                or now[19] != self._began[19])


def open_pidfd(pid):
    """A pidfd, or None where the kernel has none or the process has ended."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def stat_fields(pid):
    """The fields of /proc/<pid>/stat from the state on, or None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            text = file.read()
    except OSError:
        return None
    return text[text.rindex(")") + 2:].split()


def _status_of_pidfd(pidfd):
    # PIDFD_GET_INFO with PIDFD_INFO_EXIT: struct pidfd_info begins with the u64 mask and has the
    # i32 exit_code at byte 60.
    info_exit = 1 << 3
    size = 64
    request = 3 << 30 | size << 16 | 0xFF << 8 | 11
    try:
        reply = fcntl.ioctl(pidfd, request, struct.pack("=Q", info_exit) + bytes(size - 8))
    except OSError:
        return None
    if not struct.unpack_from("=Q", reply)[0] & info_exit:
        return None
    return struct.unpack_from("=i", reply, 60)[0]
