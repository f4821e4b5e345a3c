"""The end of a process that is not our child: when, in which order, and how."""

import fcntl
import os
import resource
import select
import struct


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


class ProcessEnd:
    """Waits for one process, and tells which others ended before it.

    Attributes, after wait(): `before` and `after`, the names of watch_mark()s that fell before
    this process's own, and of those that had not fallen then.
    """

    def __init__(self, pid):
        self._pid = pid
        self._pidfd = open_pidfd(pid)
        self._began = stat_fields(pid)
        self._marks = {}
        self.before = ()
        self.after = ()
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

    def wait(self):
        fallen = []
        ended = False
        while not ended:
            timeout = -1 if self._pidfd is not None else 0.05
            for fd, _ in self._epoll.poll(timeout, len(self._marks) + 1):
                if fd == self._pidfd:
                    ended = True
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
