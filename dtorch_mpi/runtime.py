"""The runtime: who is client, controller and worker, and the life of a job."""

import itertools
import socket
import threading
import time
from collections import Counter, deque

import torch

from . import _controller, _core, _transport, _worker
from .call_sites import LIBRARY_FOLDERS
from .engine import Engine, issuing_to
from .errors import WorkerError
from .fusion import kernels as fused_kernels
from .kernels import graph_hosting
from .kernels.alternatives import configure
from .settings import from_environment, preset

_lock = threading.RLock()
_current = None
_forked = False
_over = False
# Asked first at the end, and by shutdown(): functions that wait for what goes on beside the
# program, and return an error that nobody was told of, or None.
before_shutdown = []


class Runtime:
    """Rank 0's side: the graphs' engines, and the requests under way.

    hosted: the ThreadWorkers of this process, or None. links_of: the function that makes links to
    the workers for the graph of a number.
    """

    def __init__(self, settings, hosted, links_of, num_workers, stop_workers):
        self.settings = settings
        self.num_workers = num_workers
        self._hosted = hosted
        self._stop_workers = stop_workers
        self._links_of = links_of
        self._links = links_of(0)
        self._order = _controller.SendOrder()
        self.main = Engine(0, self._links, self._order, settings)
        self.engines = {0: self.main}  # by the graph's number
        self.closing = set()  # graphs that end with their last tensor
        self._promises = itertools.count(1)
        self._raised = set()
        self._unread = deque()  # answers that nobody took
        self._unread_failures = deque()
        self.groups = None
        self.first_rank = None  # under MPI: worker 0's
        self.end_job = None  # under MPI: leaves with all ranks after a failure
        self.closed = False

    def start(self):
        from .fusion.agreement import AgreedKernels

        self.main.start(AgreedKernels(self))

    def open_graph(self, number, settings):
        """Begin another graph on all workers; returns its Engine."""
        from .fusion.agreement import AgreedKernels

        self._raised = {record for record in self._raised if record >> 48 != number}
        engine = Engine(number, self._links_of(number), self._order, settings)
        self.engines[number] = engine
        engine.start(AgreedKernels(self))
        with issuing_to(0):
            graph_hosting.open_on_workers(number, settings.streams == "one")
        self.main.flush()
        return engine

    def end_graph(self, number):
        """End a graph whose records are executed, but for frees of its last tensors."""
        engine = self.engines.pop(number)
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
        graphs = list(self.engines)
        if len(graphs) == 1:
            return self.ask_graph(0)
        return _Together([self.ask_graph(number) for number in graphs])

    def sync_graph(self, number):
        from .future import VoidFuture

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

        return memory.measure(self.num_workers, list(self.engines))

    # ---- the end -------------------------------------------------------------------------------

    def close(self):
        """Execute what was issued, end the workers. Returns the failures that nobody has read."""
        if self.closed:
            return []
        failures = []
        while True:
            try:
                VoidRequest(self).get()
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


def VoidRequest(running):  # noqa: N802 -- reads as the class it makes
    """A future that is ready when all workers have come this far."""
    from .future import VoidFuture

    return VoidFuture(running, running.ask_sync)


class ThreadWorkers:
    """Worker threads of this process and the links to them. num_workers: of the job."""

    def __init__(self, first, count, num_workers, settings, num_threads, make_group):
        self._first, self._count = first, count
        self._num_workers = num_workers
        self._settings = settings
        self._make_group = make_group
        self._links = {}  # by graph
        self._graphs = graph_hosting.GraphHost(self._make_for_graph, num_threads)
        self._links[0] = self._new_link()
        one_stream = settings.streams == "one"
        self.workers = [self._make(first + i, 0, one_stream) for i in range(count)]
        self._threads = [
            threading.Thread(
                target=worker.run, args=(num_threads,), name=f"dtorch-worker-{worker.index}",
                daemon=True,
            )
            for worker in self.workers
        ]
        for thread in self._threads:
            thread.start()

    def _new_link(self):
        return _transport.MemoryLink(self._first, self._count, self._settings.spins)

    def link_for(self, graph):
        """The link to these workers for a graph that begins."""
        if graph != 0:
            self._links[graph] = self._new_link()
        return self._links[graph]

    def _make(self, index, graph, one_stream):
        at = index - self._first
        return _worker.Worker(
            index, "cpu", socket.gethostname(), self._links[graph].worker_end(at),
            self._make_group, num_workers=self._num_workers, one_stream=one_stream, graph=graph,
            beside=None if graph == 0 else self.workers[at],
        )  # fmt: skip

    def _make_for_graph(self, index, graph, one_stream):
        return self._make(index, graph, one_stream), None

    @property
    def all_workers(self):
        """Of all graphs."""
        return self.workers + self._graphs.workers

    def join(self):
        self._graphs.join()
        for thread in self._threads:
            thread.join()


def init(workers=None, cohost=None, **settings):
    """Start the workers. On a worker rank this never returns.

    workers: how many worker threads, where there is no launcher (DTORCH_WORKERS).
    cohost: whether rank 0 hosts a worker too (DTORCH_COHOST).
    settings: others of `dtorch_mpi.settings.Settings`, each of which the environment can give too.

    Calling it is optional where one worker thread is enough: the first use of the device
    does. Raises RuntimeError when the workers run already, or the ranks do not agree;
    TypeError for a setting that does not exist.
    """
    global _current
    given = {"workers": workers, "cohost": cohost, **settings}
    given = {name: value for name, value in given.items() if value is not None}
    with _lock:
        if _current is not None:
            _check_running(given)
            return
        if _forked:
            raise RuntimeError(
                "this process was forked from one that uses the dtorch device, and has no "
                "workers; in a DataLoader worker use CPU tensors, or the 'spawn' start method"
            )
        if _over:
            raise RuntimeError(
                "the program is ending and its dtorch workers have stopped: use the device before, "
                "in an atexit function registered after dtorch_mpi was imported at the latest"
            )
        chosen = from_environment(**preset | given)
        configure(chosen.kernels)
        fused_kernels.configure(chosen)
        _core.capture_users_operators()  # those of libraries that were loaded by other ways
        from .launch.environment import detect

        launch = detect()
        if launch is not None and launch.size > 1:
            from .mpi_runtime import start

            _current = start(chosen, launch)
        else:
            _current = _start_threads(chosen)
        # Backward passes run on the calling thread: a hop to another one costs more than
        # capturing does.
        torch.autograd.set_multithreading_enabled(False)


def _check_running(given):
    from_environment(**given)  # raises for what is no setting
    wanted = dict(given)
    if "workers" in wanted and wanted.pop("workers") != _current.num_workers:
        raise RuntimeError(
            f"dtorch_mpi runs already, with {_current.num_workers} workers, and {given['workers']} "
            "were asked for: call dtorch_mpi.init() before the first use of the device"
        )
    for name, value in wanted.items():
        if (runs := getattr(_current.settings, name)) != value:
            raise RuntimeError(
                f"dtorch_mpi runs already, with {name}={runs!r}, and {value!r} was asked for: call "
                "dtorch_mpi.init() before the first use of the device, or set dt.config where that "
                "can change"
            )


def _start_threads(settings):
    from ._collectives import ThreadGroups, delay_collectives
    from .launch.placement import cpu_threads

    delay_collectives(settings.collective_delay_us)
    groups = ThreadGroups()
    threads = settings.threads or cpu_threads(settings.workers)
    hosted = ThreadWorkers(0, settings.workers, settings.workers, settings, threads,
                           groups.maker())  # fmt: skip
    running = Runtime(settings, hosted, lambda graph: [hosted.link_for(graph)], settings.workers,
                      hosted.join)
    running.groups = groups
    running.start()
    return running


def runtime():
    """The running one; starts it on first use."""
    if _current is None:
        init()
    return _current


def current():
    return _current


def is_initialized():
    """Whether the workers run."""
    return _current is not None


def num_workers():
    """How many workers this job has."""
    return runtime().num_workers


def sync():
    """Wait until the workers have executed everything issued; raises WorkerError for a failure."""
    sync_future().get()


def sync_future():
    """A VoidFuture that is ready when everything issued so far is executed."""
    return VoidRequest(runtime())


def shutdown():
    """End the workers. Raises WorkerError for a failure that nobody has read.

    Waits for a checkpoint that is being written, and raises its error if it fails. Called at
    exit. Tensors on the device can't be used afterwards; in a process without a launcher, init()
    may be called again.
    """
    global _current
    with _lock:
        if _current is None:
            return
        untold = [error for finish in before_shutdown if (error := finish()) is not None]
        for engine in _current.engines.values():
            if engine.planner is not None:
                engine.planner.stop()  # it may issue something, which must not start workers anew
        running, _current = _current, None
        failures = untold + running.close()
        from .mesh import forget_all

        forget_all()
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"Another operator failed, and nobody read its result:\n{other}")
        raise failures[0]


def end():
    """The program is over: returns the runtime, or None, and lets no other begin."""
    global _current, _over
    for engine in _current.engines.values() if _current is not None else ():
        if engine.planner is not None:
            engine.planner.halt()
    running, _current = _current, None
    _over = True
    return running


def in_forked_child():
    return _forked


def forget_after_fork():
    """In a forked child: the workers' threads do not exist here."""
    global _forked, _current
    if _current is not None:
        _forked = True
        # Never freed: its locks belong to threads that do not exist here.
        _core.forget_after_fork(_current, [n for n in _current.engines if n != 0])
        _current = None


def register():
    """Make the device known to PyTorch; runs once, at import."""
    from . import endings, loading, printing, tensor
    from .device_module import max_memory_allocated, memory_allocated, reset_peak_memory_stats
    from .kernels import interception
    from .sharding.hook import shard
    from .sharding.lists import by_elements
    from .sizes.families import sizes

    def describe(slots):
        running = runtime()
        found = []
        for slot in slots:
            replies, promise = running.expect_all(nbytes=1024)
            _core.request_description(slot, promise)
            found.append(replies)
        running.flush()
        return [_description(running, replies) for replies in found]

    def check():
        if _current is not None:
            _current.check()

    for folder in LIBRARY_FOLDERS:
        _core.add_library_folder(folder)

    def start(for_old_tensors):
        if for_old_tensors and not (_forked or _over):
            raise RuntimeError(
                "this tensor belongs to dtorch workers that were shut down: make it again, or keep "
                "its value with .cpu() before dtorch_mpi.shutdown()"
            )
        init()

    def measure():
        return memory_allocated(), max_memory_allocated()

    _core.register(
        read=tensor.read, describe=describe, shard=shard, elements=by_elements, sizes=sizes,
        start=start, drain=check, synchronize=sync, measure=measure,
        reset_peak=reset_peak_memory_stats, arrived=loading.arrived,
    )
    # The CPU's: workers' kernels follow its lists. PyTorch's default for other devices is float16.
    torch.set_autocast_dtype("dtorch", torch.get_autocast_dtype("cpu"))
    tensor.add_methods()
    printing.install()
    loading.install()
    endings.install()
    interception.install()


def _description(running, replies):
    while not replies.wait(100_000):
        running.check()
    parts = replies.parts()
    failures = [failure for _, failure in parts if failure is not None]
    failure = running.not_yet_raised(failures, certain=True)
    if failure is not None:
        raise running.error(failure)
    words = next(value for value, _ in parts if value is not None).tolist()
    if not words:
        return None
    dtype, ndim, offset = words[:3]
    return dtype, words[3 : 3 + ndim], words[3 + ndim :], offset
