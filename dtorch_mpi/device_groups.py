"""What serves the collectives of workers on accelerators: NCCL, or backends for host memory."""

import fcntl
import os
import socket
import struct
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ._collectives import group_maker, host_staged, make_group

TIMEOUT = timedelta(minutes=30)  # as that of the backends for host memory
CONNECT_SECONDS = 5
ABORT_SECONDS, SHUTDOWN_SECONDS = 3, 20
SIOCGIFADDR = 0x8915  # of Linux: the IPv4 address of a network interface


def nccl_serves(devices):
    """Whether workers on these devices (WorkerDevices) can have an NCCL group.

    It takes no two members on one device. The members must all get the same answer.
    """
    own = len({worker.identity for worker in devices}) == len(devices)
    kinds = {worker.device.partition(":")[0] for worker in devices}
    return own and kinds == {"cuda"} and dist.is_nccl_available()


def any_nccl(devices):
    """Whether some workers of a job on these devices can have an NCCL group."""
    return any(nccl_serves([worker]) for worker in devices)


def host_memory_line(devices):
    """A line that says which workers on GPUs reach each other by host memory, or None."""
    if sum(worker.is_gpu for worker in devices) < 2:
        return None
    if not any_nccl(devices):
        return ("this PyTorch has no NCCL for the workers' GPUs: collectives between workers go "
                "through host memory")
    sharing = {}
    for index, worker in enumerate(devices):
        if worker.is_gpu:
            sharing.setdefault(worker.identity, []).append(index)
    shared = [members for members in sharing.values() if len(members) > 1]
    if not shared:
        return None
    texts = [f"workers {', '.join(map(str, members))} share {devices[members[0]].device} of host "
             f"{devices[members[0]].host}" for members in shared[:4]]
    more = f"; {len(shared) - 4} more GPUs are shared" if len(shared) > 4 else ""
    return (f"{'; '.join(texts)}{more}: NCCL takes no two workers on one GPU, so collectives of "
            "groups with both go through host memory; start as many workers as there are GPUs")


class DeviceGroups:
    """Makes the groups of a job's workers, some of which may be on accelerators.

    devices: the WorkerDevice of each worker of the job. inner: capsule that makes groups for host
    memory. store: a c10d Store that all workers use, where any_nccl(devices). abort_inner:
    function of a text that ends what waits in the groups for host memory.
    """

    def __init__(self, devices, inner, store, abort_inner=lambda reason: None):
        self._devices = devices
        self._inner = inner
        self._store = store
        self._abort_inner = abort_inner
        self._made = {}  # (workers, rank) -> Backend; meshes of the same workers share it
        self._of_nccl = []
        if store is not None:
            _keep_nccl_errors()

    def maker(self):
        """The capsule that workers take."""
        if not any(worker.is_gpu for worker in self._devices):
            return self._inner
        return group_maker(self.group)

    def group(self, workers, rank):
        """The Backend of a group of these workers, for the one at `rank`. All of them call it."""
        key = tuple(workers), rank
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def _make(self, workers, rank):
        members = [self._devices[worker] for worker in workers]
        if nccl_serves(members):
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = TIMEOUT
            name = "workers " + ",".join(map(str, workers))
            made = dist.ProcessGroupNCCL(
                dist.PrefixStore(name, self._store), rank, len(workers), options)
            self._of_nccl.append(made)
            return made
        made = make_group(self._inner, list(workers), rank)
        own = members[rank]
        return host_staged(made, torch.device(own.device)) if own.is_gpu else made

    def abort(self, reason):
        """End what waits in groups of this process, and what is called later."""
        self._abort_inner(reason)
        _at_once([group.abort for group in self._of_nccl], ABORT_SECONDS)

    def shutdown(self):
        """Take leave of the other members, when nothing is under way: all call it.

        Without it NCCL's threads would go on while the process ends.
        """
        _at_once([group.shutdown for group in self._of_nccl], SHUTDOWN_SECONDS)


def _at_once(calls, seconds):
    """Make each call in a thread of its own, for each may wait for other members, and not for ever.

    An end that has come so far is not held up by a member that is gone.
    """
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, until - time.monotonic()))


def _keep_nccl_errors():
    """Have errors and time-outs of NCCL become a worker's, whose watchers end the job with a text.

    NCCL's own watchdog would end the process: by default (3) when it sees one; and with 2, which
    aborts the communicators only, its heartbeat monitor does so 8 minutes later.
    """
    if "NCCL_ASYNC_ERROR_HANDLING" not in os.environ:  # its old name, which counts too
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")


def share_store(comm, server, same_node):
    """A TCPStore that rank `server` of the communicator holds, at a port that nobody had to choose.

    same_node: whether this rank is on the server's node. Collective. RuntimeError on all ranks when
    one can't reach it.
    """
    store, mine = None, None
    if comm.rank == server:
        store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, timeout=TIMEOUT,
                              wait_for_workers=False)
        mine = store.port, [socket.gethostname(), *interface_addresses()]
    port, hosts = comm.bcast(mine, root=server)
    failure = None
    if comm.rank != server:
        hosts = ["127.0.0.1"] if same_node else hosts
        try:
            host = _first_that_answers(hosts, port)
            store = dist.TCPStore(host, port, None, is_master=False, timeout=TIMEOUT,
                                  wait_for_workers=False)
        except OSError as error:
            failure = f"rank {comm.rank} on host {socket.gethostname()}: {error}"
    failures = [text for text in comm.allgather(failure) if text]
    if failures:
        raise RuntimeError(
            f"{len(failures)} of {comm.size} ranks can't reach rank {server} by TCP, which NCCL "
            f"needs to start; first {failures[0]}. Let hosts of a job connect to each other's "
            "ports, or set DTORCH_DEVICE=cpu")
    return store


def _first_that_answers(hosts, port):
    reasons = []
    for host in hosts:
        try:
            socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
            return host
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
    raise OSError("; ".join(reasons))


def interface_addresses():
    """IPv4 addresses of this host's network interfaces, other than the loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has none
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith("127."):
                found.append(address)
    return found
