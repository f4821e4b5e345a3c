"""Rank 0's side of a job: the graphs' engines, the links, and the requests under way."""

import itertools
import threading
import time
from collections import Counter, deque

import torch

from . import _controller, _core
from .engine import Engine, issuing_to
from .errors import WorkerError
from .future import VoidFuture
from .kernels import graph_hosting


class Runtime:
    """Rank 0's side: the graphs' engines, and the requests under way.

    hosted: the ThreadWorkers of this process, or None. links_of: the function that makes links to
    the workers for the graph of a number. devices: the WorkerDevice of each worker.
    """

    def __init__(self, settings, hosted, links_of, devices, stop_workers):
        self.settings = settings
        self.num_workers = len(devices)
        kinds = {torch.device(worker.device).type for worker in devices}
        self.device_kind = max(kinds, key=lambda kind: kind != "cpu")  # where they compute
        self._hosted = hosted
        self._stop_workers = stop_workers
        self._links_of = links_of
        self._links = links_of(0)
        self._order = _controller.SendOrder()
        self.main = Engine(0, self._links, self._order, settings, self.device_kind)
        self.engines = {0: self.main}  # by the graph's number; never changed, but replaced
        self.graphs_lock = threading.RLock()  # held while graphs begin and end
        self.closing = set()  # graphs that end with their last tensor
        self._promises = itertools.count(1)
        self._raised = set()
        self._unread = deque()  # answers that nobody took
        self._unread_failures = deque()
        self.groups = None
        self.first_rank = None  # under MPI: worker 0's
        self.end_job = None  # under MPI: leaves with all ranks after a failure
        self.leaves_last = False  # under MPI: this process waits for the workers' to end
        self.closed = False

    def start(self):
        from .fusion.agreement import AgreedKernels, warn_without_triton

        if self.settings.triton and self.device_kind != "cpu":
            warn_without_triton()
        # Not within an autocast of the program's, which may be what starts the workers.
        if _core.set_workers_device(self.device_kind) and not torch.is_autocast_enabled("dtorch"):
            torch.set_autocast_dtype("dtorch", torch.get_autocast_dtype(self.device_kind))
        self.main.start(AgreedKernels(self))

    def open_graph(self, number, settings):
        """Begin another graph on all workers; returns its Engine."""
        from .fusion.agreement import AgreedKernels

        self._raised = {record for record in self._raised if record >> 48 != number}
        engine = Engine(number, self._links_of(number), self._order, settings, self.device_kind)
        self.engines = self.engines | {number: engine}
        engine.start(AgreedKernels(self))
        with issuing_to(0):
            graph_hosting.open_on_workers(number, settings.streams == "one")
        self.main.flush()
        return engine

    def end_graph(self, number):
        """End a graph whose records are executed, but for frees of its last tensors."""
        engine = self.engines[number]
        self.engines = {n: other for n, other in self.engines.items() if n != number}
        if engine.planner is not None:
            engine.planner.stop()
        engine.shut()
        engine.join()
        engine.controller.leave()
        # Nothing of it may come to the next graph of this number.
        while not all(link.have_ended() for link in engine.links):
            self.check()
            time.sleep(0.001)

    @property
    def hosted_workers(self):
        """The _worker.Workers of this process, of the main graph."""
        return self._hosted.workers if self._hosted else []

    @property
    def local_workers(self):
        """The numbers of those that run in this process."""
        return {worker.index for worker in self.hosted_workers}

    @property
    def controllers(self):
        """Of all graphs."""
        return [engine.controller for engine in self.engines.values()]

    def trace_counters(self):
        """What became of the windows of all graphs so far, by name."""
        total = Counter()
        for controller in self.controllers:
            total.update(controller.trace_counters())
        return dict(total)

    @property
    def num_batches(self):
        return sum(controller.num_batches for controller in self.controllers)

    @property
    def bytes_sent(self):
        """Of batches, to each worker."""
        return sum(controller.bytes_sent for controller in self.controllers)

    @property
    def num_sends(self):
        return sum(link.num_sends for engine in self.engines.values() for link in engine.links)

    def flush(self, graph=None):
        """Have everything issued to a graph, by default this thread's, sent at once."""
        engine = self.engines.get(_core.current_graph() if graph is None else graph)
        if engine is not None:
            engine.flush()

    def check(self):
        """Raise if waiting on is pointless, because a worker is gone."""
        for link in self._links:
            link.check()
        for worker in self._hosted.all_workers if self._hosted else ():
            if worker.broken:
                raise RuntimeError(
                    f"worker {worker.index} lost the stream of records ({worker.broken}): this is "
                    "a fault of dtorch_mpi, and no value can be had any more"
                )

    # ---- requests ----------------------------------------------------------------------------

    def _promise(self):
        return next(self._promises) % (1 << 31)

    def expect_value(self, workers, tensor, sharding):
        """(replies, promise) for a value that the given workers (None: all) answer."""
        number = self._promise()
        members = list(range(self.num_workers)) if workers is None else sorted(workers)
        nbytes = tensor.numel() * tensor.element_size()
        return self._expect(number, members, nbytes)

    def expect_all(self, nbytes=0):
        return self._expect(self._promise(), list(range(self.num_workers)), nbytes)

    def ask_graph(self, number):
        """Replies that are there when all workers have come this far in one graph."""
        with issuing_to(number):
            replies, promise = self.expect_all()
            _core.request_sync(promise)
        self.flush(number)
        return replies

    def ask_sync(self):
        """The same of all graphs."""
        with self.graphs_lock:
            if len(self.engines) == 1:
                return self.ask_graph(0)
            return _Together([self.ask_graph(number) for number in self.engines])

    def sync_graph(self, number):
        VoidFuture(self, lambda: self.ask_graph(number)).get()

    def left_unread(self, replies):
        """Look after the answers of a future that was dropped: a failure must not get lost."""
        if not self.closed:
            self._unread.append(replies)

    def put_back(self, failures):
        """Keep failures that came with an answer for somebody else than the program."""
        self._unread_failures.extend(failures)

    def _look_at_unread(self):
        while self._unread and self._unread[0].poll():
            try:
                replies = self._unread.popleft()
            except IndexError:
                return  # another thread was faster
            self._unread_failures.extend(
                failure for _, failure in replies.parts() if failure is not None
            )

    def _expect(self, number, members, nbytes):
        self._look_at_unread()
        if len(self._links) == 1:
            return self._links[0].expect(number, self.num_workers, members, nbytes)
        # The answers of each link, side by side; every worker belongs to one of them.
        found = [link.expect(number, self.num_workers, members, nbytes) for link in self._links]
        return _Joined([replies for replies, _ in found]), found[-1][1]

    def not_yet_raised(self, failures, certain):
        """The failure to raise of those that came in, or None if each was raised before.

        certain: a value depends on them, so raise in any case.
        """
        failures = sorted(failures, key=lambda failure: failure[2])
        if failures and certain:
            self._unread_failures.extend(failures[1:])
            self._raised.add(failures[0][2])
            return failures[0]
        self._look_at_unread()
        self._unread_failures.extendleft(reversed(failures))
        while self._unread_failures:
            failure = self._unread_failures.popleft()
            if failure[2] not in self._raised:
                self._raised.add(failure[2])
                return failure
        return None

    def error(self, failure):
        """The WorkerError for a failure as a reply brings it."""
        text, site, record, worker, host = failure
        rank = None if self.first_rank is None else self.first_rank + worker
        return WorkerError(text, site, record % (1 << 48), worker, host, rank)  # of its graph

    def worker_memory(self):
        from .kernels import memory

        with self.graphs_lock:
            return memory.measure(self.num_workers, list(self.engines))

    # ---- the end -------------------------------------------------------------------------------

    def close(self):
        """Execute what was issued, end the workers. Returns the failures that nobody has read."""
        if self.closed:
            return []
        failures = []
        while True:
            try:
                VoidFuture(self, self.ask_sync).get()
                break
            except WorkerError as error:
                failures.append(error)
        self.closed = True
        _core.set_current_graph(0)
        for number in sorted(self.engines, reverse=True):
            if number != 0:
                self.end_graph(number)
        if self.main.planner is not None:
            self.main.planner.stop()
            self.main.planner.kernels.stop()
        self.main.shut()
        self.main.join()
        self._stop_workers()
        return failures

    def abandon(self):
        """End without waiting for what was issued: the program has failed.

        Returns whether the workers of this process have ended; an operator or a kernel that
        runs can't be interrupted.
        """
        self.closed = True
        workers = self._hosted.all_workers if self._hosted else []
        for worker in workers:
            worker.stop()
        if self.groups is not None:
            self.groups.abort("the program has ended")
        engines = list(self.engines.values())
        for engine in engines:
            engine.shut()
        until = time.monotonic() + 3
        planned = [
            engine.planner.stop(max(0.0, until - time.monotonic()))
            for engine in engines if engine.planner is not None
        ]  # fmt: skip
        if self.main.planner is not None:
            self.main.planner.kernels.stop()
        while any(worker.running for worker in workers) and time.monotonic() < until:
            time.sleep(0.005)
        for engine in engines:
            engine.join(timeout=max(0.5, until - time.monotonic()))
            engine.abandon()
        if self.end_job is not None:
            return self.end_job()
        return all(planned) and not any(worker.running for worker in workers)


class _Together:
    """Replies to several requests, as one."""

    def __init__(self, replies):
        self._replies = replies

    def poll(self):
        return all(replies.poll() for replies in self._replies)

    def wait(self, microseconds):
        return all(replies.wait(microseconds) for replies in self._replies)

    def parts(self):
        return [part for replies in self._replies for part in replies.parts()]


class _Joined(_Together):
    """The answers of several links' workers to one request."""

    def parts(self):
        joined = None
        for replies in self._replies:
            parts = replies.parts()
            joined = parts if joined is None else [
                there if here == (None, None) else here
                for here, there in zip(joined, parts, strict=True)
            ]
        return joined
