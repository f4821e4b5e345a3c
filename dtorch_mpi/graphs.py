"""`dtorch_mpi.Graph`: several queues of operators, which workers run at the same time."""

import threading
from dataclasses import replace
from typing import Self

import torch

from . import _core, passes
from .future import VoidFuture
from .settings import NAMES

_MOST = 63  # beside the main graph; kMaxGraphs of src/wire/record.h
_SETTINGS = ("max_records", "max_bytes", "window_bytes", "gather_us", "traces", "passes",
             "streams")  # fmt: skip
_entered = threading.local()


class Graph:
    """Operators that are issued within it run beside those of other graphs.

        graph = dt.Graph()
        with graph:
            y = model(x)
        z = other(x)          # runs at the same time
        print((y + z).sum())  # waits for both where it uses them

    Every worker has a thread for each graph. Tensors may be used in any graph: a record waits for
    those of other graphs, issued before, that write what it reads, or read or write what it writes;
    so the program means what it means without graphs. Python threads may each work in a graph of
    their own, and several may share one.

    Collectives of all graphs run in one order, the same on every worker, which the controller
    gives: that of the batches that it sends.

    settings: of this graph, by the names of `dtorch_mpi.settings.Settings`: traces, passes,
    streams, max_records, max_bytes, window_bytes, gather_us; by default the job's. Raises TypeError
    for others, ValueError for a value that does not fit, and RuntimeError where 63 graphs are open.

    A graph that is closed, or that nobody has any more, ends when its last tensor does.
    """

    _engine = None  # until it is there

    def __init__(self, **settings: int | str | bool) -> None:
        from .runtime import runtime

        if wrong := settings.keys() - set(_SETTINGS):
            known = "can't differ between graphs" if wrong <= set(NAMES) else "are no settings"
            raise TypeError(f"{', '.join(sorted(wrong))} {known}: expected some of {_SETTINGS}")
        self._running = running = runtime()
        with running.graphs_lock:
            reap(running)
            number = next((n for n in range(1, _MOST + 1) if n not in running.engines), None)
            if number is None:
                raise RuntimeError(
                    f"{_MOST} graphs are open, and there can be no more: close() some, and drop "
                    "the tensors that they made"
                )
            chosen = replace(running.settings, **settings)
            passes.chosen(chosen.passes)  # raises for names that are none
            self._engine = running.open_graph(number, chosen)
        self.number = number
        self.is_closed = False

    def __enter__(self) -> Self:
        self._check_open()
        if not hasattr(_entered, "before"):
            _entered.before = []
        _entered.before.append(_core.current_graph())
        _core.set_current_graph(self.number)
        # A backward pass goes to the graph of the thread that it runs on: it has to be this one.
        torch.autograd.set_multithreading_enabled(False)
        return self

    def __exit__(self, *error: object) -> None:
        _core.set_current_graph(_entered.before.pop())

    def sync(self) -> None:
        """Wait until the workers have executed everything issued to this graph.

        Raises WorkerError for a failure in it that nobody has read.
        """
        self.sync_future().get()

    def sync_future(self) -> VoidFuture:
        """A VoidFuture that is ready when everything issued to this graph so far is executed."""
        self._check_running()
        return VoidFuture(self._running, lambda: self._running.ask_graph(self.number))

    def close(self) -> None:
        """Wait until all is executed, and take no operators any more; again, does nothing.

        Its tensors stay. Raises WorkerError for a failure in it that nobody has read.
        """
        if self.is_closed:
            return
        self.is_closed = True
        if self._running.closed:
            return
        try:
            self._running.sync_graph(self.number)
        finally:
            self._running.closing.add(self.number)
            with self._running.graphs_lock:
                reap(self._running)

    def __del__(self):
        if self._engine is not None and not self.is_closed:
            self._running.closing.add(self.number)

    def __repr__(self):
        state = "closed" if self.is_closed or self._running.closed else "open"
        return f"<dtorch_mpi.Graph {self.number}, {state}>"

    def __reduce__(self):
        raise TypeError("a Graph belongs to the program that issues to it, and can't be copied or "
                        "pickled")

    def _check_open(self):
        if self.is_closed:
            raise RuntimeError("this graph is closed: make another with dtorch_mpi.Graph()")
        self._check_running()

    def _check_running(self):
        if self._running.closed:
            raise RuntimeError(
                "this graph belongs to dtorch workers that were shut down: make another with "
                "dtorch_mpi.Graph()"
            )


def reap(running):
    """End the graphs that are closed and of which no tensor is left."""
    for number in list(running.closing):
        if _core.live_slots(number) == 0:
            running.closing.discard(number)
            running.end_graph(number)
