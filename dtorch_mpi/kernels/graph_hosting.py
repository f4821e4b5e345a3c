"""The workers' part of `dtorch_mpi.Graph`: a thread for each graph on every worker."""

import threading

import torch

from .registry import call, kernel

_host = None  # of this process


class GraphHost:
    """Runs the graphs of this process's workers, but for the main ones.

    make: a function of a worker's number, a graph's, and whether it has one stream, which returns
    the _worker.Worker that runs it and what is to be called when it has ended, or None. failed:
    called with the exception where a worker can't go on; by default, whoever waits for it finds
    out.
    """

    def __init__(self, make, num_threads, failed=None):
        global _host
        self._make = make
        self._num_threads = num_threads
        self._failed = failed
        self._lock = threading.Lock()
        self._running = {}  # (worker, graph) -> (_worker.Worker, thread)
        _host = self

    @property
    def workers(self):
        with self._lock:
            return [worker for worker, _ in self._running.values() if worker is not None]

    def open(self, index, graph, one_stream):
        with self._lock:
            before = self._running.pop((index, graph), None)
        if before is not None:
            before[1].join()  # its last record has been executed
        worker, after = self._make(index, graph, one_stream)
        thread = threading.Thread(
            target=self._run, args=(index, graph, worker, after),
            name=f"dtorch-worker-{index}-graph-{graph}", daemon=True,
        )  # fmt: skip
        with self._lock:
            self._running[index, graph] = worker, thread
        thread.start()

    def stop(self):
        for worker in self.workers:
            worker.stop()

    def join(self):
        with self._lock:
            threads = [thread for _, thread in self._running.values()]
        for thread in threads:
            thread.join()

    def _run(self, index, graph, worker, after):
        try:
            worker.run(self._num_threads)
            if after is not None:
                after()
            with self._lock:  # which tensors it held is of no matter any more
                self._running[index, graph] = None, threading.current_thread()
        except BaseException as error:
            if self._failed is not None:
                self._failed(error)
            raise


@kernel("dtorch.open_graph")
def _open(context, graph, one_stream):
    from .. import _worker

    _host.open(_worker.this_index(), graph, one_stream)
    return torch.zeros(context.sizes[0], dtype=torch.uint8)


def open_on_workers(graph, one_stream):
    """Have every worker begin a graph. Its thread starts once all issued so far is executed."""
    call("dtorch.open_graph", [graph, one_stream], sizes=[], dtype=torch.uint8)
