"""Where the watchers of all nodes meet, so that one of them tells: at the watcher of rank 0.

Of jobs on one node, the folder that the watchers share is enough (death_watch.py). On
several, the watcher that would tell for its node sends its report here, over TCP, and is silent
once it is taken. Where it finds nobody, it tells by itself.
"""

import _socket  # the socket module costs 10 ms
import os
import time

# How long after rank 0's end the hub waits for other nodes' reports, in seconds, before it tells;
# and where one has a cause of its own, for earlier ones that are on their way. It must not take
# long: a batch system ends what is left of a job soon.
SETTLE = 1.5
SETTLE_WITH_CAUSE = 0.2
# For how long it takes reports in silence afterwards: a launcher may end other nodes late.
LINGER = 6
# How long one side waits for the other within a connection.
PATIENCE = 0.7


class Hub:
    """Rank 0's end.

    fd: of the listening socket. token: what each message has to begin with. num_nodes: from each of
    which one report may come.
    """

    def __init__(self, fd, token, num_nodes):
        self._listener = _socket.socket(fileno=fd)
        self._listener.settimeout(PATIENCE)
        self._token = token
        self._num_nodes = num_nodes
        self.fd = fd
        self.reports = []  # (when by our clock, rank, own, death's text, block)

    def take(self):
        """Take one message, which is there or on its way."""
        try:
            fd, _ = self._listener._accept()
        except OSError:
            return
        peer = _socket.socket(fileno=fd)
        try:
            peer.settimeout(PATIENCE)
            data = b""
            while not data.endswith(b"\0"):
                part = peer.recv(1 << 16)
                if not part or len(data) > 1 << 20:
                    return
                data += part
            token, age, rank, own, text, block = data[:-1].decode("utf-8", "replace").split("\n", 5)
            if token == self._token:
                self.add(time.monotonic() - float(age), int(rank), own == "1", text, block)
                peer.send(b"1")
        except (OSError, ValueError):
            pass  # none of ours
        finally:
            peer.close()

    def add(self, when, rank, own, text, block):
        self.reports.append((when, rank, own, text, block))

    def settle(self):
        """Wait until all nodes have reported, or it is time to tell."""
        began = time.monotonic()
        self._take_until(lambda: began + (
            SETTLE_WITH_CAUSE if any(own for _, _, own, _, _ in self.reports) else SETTLE))

    def linger(self):
        """Take what other nodes still report, so that they are silent."""
        until = time.monotonic() + LINGER
        self._take_until(lambda: until)

    def _take_until(self, end):
        while len(self.reports) < self._num_nodes and (left := end() - time.monotonic()) > 0:
            self._listener.settimeout(left)
            self.take()


def send(address, token, age, death, block):
    """Whether the hub at `address` ("host:port", numeric) has taken the report.

    age: for how many seconds the rank has been dead.
    """
    host, _, port = address.rpartition(":")
    text = " ".join(death.text.split())
    message = f"{token}\n{age}\n{death.rank}\n{int(death.own)}\n{text}\n{block}\0"
    try:
        peer = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    except OSError:
        return False
    try:
        peer.settimeout(PATIENCE)
        peer.connect((host, int(port)))
        peer.sendall(message.encode())
        return peer.recv(1) == b"1"
    except OSError:
        return False
    finally:
        peer.close()


def open_listener():
    """A listening socket's descriptor and its port; for the process whose watcher gets it."""
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("", 0))
    listener.listen(128)
    port = listener.getsockname()[1]
    return listener.detach(), port


def new_token():
    return os.urandom(12).hex()
