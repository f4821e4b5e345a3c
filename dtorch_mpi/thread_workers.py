"""Workers that are threads of this process."""

import socket
import threading

from . import _transport, _worker
from .device_graphs import captures_for
from .kernels.graph_hosting import GraphHost


class ThreadWorkers:
    """Worker threads of this process and the links to them.

    devices: one for each of them, by name. num_workers: of the job. in_flight: whether they write
    this process's flight record.
    """

    def __init__(self, first, devices, num_workers, settings, num_threads, make_group, *,
                 in_flight=False):  # fmt: skip
        count = len(devices)
        self._devices = devices
        self._first, self._count = first, count
        self._num_workers = num_workers
        self._settings = settings
        self._make_group = make_group
        self._in_flight = in_flight
        self._links = {}  # by graph
        self._graphs = GraphHost(self._make_for_graph, num_threads)
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
        made = _worker.Worker(
            index, self._devices[at], socket.gethostname(), self._links[graph].worker_end(at),
            self._make_group, num_workers=self._num_workers, one_stream=one_stream, graph=graph,
            beside=None if graph == 0 else self.workers[at],
            captures=captures_for(self._devices[at], self._settings.cuda_graphs),
        )  # fmt: skip
        if self._in_flight:
            made.note_flight()
        return made

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
