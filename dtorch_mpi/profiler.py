"""One timeline of client, controller and workers, as Chrome's trace-event JSON."""

import json
import os
import threading
import time
from typing import Any, Self

import torch

from . import _core
from .engine import issuing_to
from .errors import WorkerError
from .kernels.timeline import EVENT_BYTES, on_all_workers
from .trace_events import CLIENT, CONTROLLER, FIRST_WORKER, Trace

_MAX_EVENTS = 1 << 24
_PIECE = 1 << 13  # events that are brought from each worker at once
_FEWEST_PINGS, _MOST_PINGS, _PING_SECONDS = 8, 64, 0.1

_lock = threading.Lock()
_active = None  # the Profile that is being taken


def profile(path: str | os.PathLike | None = None, *, max_events: int = 1 << 17) -> "Profile":
    """A :class:`Profile` of the block that it is the context of.

        with dt.profile("trace.json"):
            train_step()

    path: where the trace is written when the block ends; None writes none, and
    :meth:`Profile.events` or :meth:`Profile.write` gives it. The file is Chrome's trace-event
    JSON: https://ui.perfetto.dev opens it. max_events: how many events the client, the controller
    and each worker keep (88 bytes each, allocated at the beginning). The latest stay; how many were
    lost is said in the file.

    Rows: the client (what the program issued, one row for each of its threads), the controller
    (batches sent; windows, replays, new plans and departures), and of every worker the records that
    it executed, and its redistributions, with their collectives, on a row of their own. Each stream
    has a row, and each graph rows of its own, if it was there when the block began. Records
    that a worker replayed are marked (`"replayed": true`), and have names, shapes and the user's
    line all the same. Where passes have changed a plan (`"rewritten": true`), "record" is the first
    of those in whose place an operator is; else it is the same as on the client's row. Shapes are
    global ones. They are missing for operators whose outputs depend on data (`nonzero`), for those
    that passes have made of several, and where a call is 65536 new ones back. Freeing memory is not
    shown.

    Beginning and end wait for the workers. Under a launcher the workers' clocks are measured at
    both: of several exchanges the one that was back first counts, and the worker is taken to have
    answered midway (F. Cristian, Probabilistic clock synchronization, Distributed Computing 3,
    1989). The error is at most half of that exchange, and is said in the file. Between beginning
    and end the offset is taken to drift evenly.

    Raises:
        TypeError: `path` is no path, or `max_events` no int.
        ValueError: `max_events` is below 1 or above 2^24.
    """
    return Profile(path, max_events=max_events)


class Profile:
    """What :func:`profile` makes; may be used again, for another block, when one has ended.

    Attributes, after the block: `lost`, how many events each of "client", "controller", "worker 0",
    ... had no room for; `operators`, how many operators each worker executed; `clock_offsets`, by
    how many seconds each worker's clock was ahead at the beginning, which is taken off its times;
    `clock_errors`, by how many seconds these may still be off.

    Entering raises ValueError while another profile is taken, RuntimeError where no workers can be
    had, OSError if the file can't be written, and WorkerError for an operator that failed before
    and whose result nobody has read. Leaving raises that for one in the block, once the trace is
    written, and RuntimeError if the workers were shut down in the block.
    """

    def __init__(
        self, path: str | os.PathLike | None = None, *, max_events: int = 1 << 17
    ) -> None:
        if path is not None:
            path = os.fspath(path)
        if isinstance(max_events, bool) or not isinstance(max_events, int):
            raise TypeError(f"max_events is {max_events!r}: expected an int")
        if not 1 <= max_events <= _MAX_EVENTS:
            raise ValueError(f"max_events is {max_events}: expected 1 to {_MAX_EVENTS}")
        self._path = path
        self._max_events = max_events
        self._forget()

    def _forget(self):
        self.lost, self.operators = {}, []
        self.clock_offsets, self.clock_errors = [], []
        self._trace = None
        self._file = None
        self._failures = []
        self._running = None
        self._workers_note = False
        self._operators_before = None

    # ---- the block ---------------------------------------------------------------------------

    def __enter__(self) -> Self:
        global _active
        with _lock:
            if _active is not None:
                raise ValueError(
                    "a profile is being taken already, and there is one timeline: end that `with "
                    "dt.profile()` block before this one, or leave this one out"
                )
            _active = self
        from .runtime import runtime

        try:
            with runtime().graphs_lock:
                self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            with self._running.graphs_lock:
                self._collect()
            if self._file is not None:
                self._write_to(self._file)
        finally:
            self._end()
        if not self._failures:
            return
        if error is None:
            raise self._failures[0]
        for failure in self._failures:
            error.add_note(f"An operator failed, and nobody read its result:\n{failure}")

    def _begin(self):
        from .runtime import runtime, sync

        self._forget()
        self._running = running = runtime()
        sync()  # what failed before is no matter of this block
        # Now rather than when all is done, and lost if it fails.
        self._file = None if self._path is None else open(self._path, "w")  # noqa: SIM115
        self._began = self._measure_clocks()
        # Read at the end: reading issues operators.
        self._workers_note = True
        self._operators_before = {
            graph: self._run(graph, "timeline.begin", [self._max_events], 1)
            for graph in running.engines
        }
        sync()
        self._zero = time.monotonic_ns()
        self._first_records = {}
        for graph, engine in running.engines.items():
            engine.controller.begin_timeline(self._max_events)
            self._first_records[graph] = _core.records_issued(graph)
        _core.begin_timeline(self._max_events)

    def _end(self):
        global _active
        from .runtime import current

        _core.stop_timeline()
        _core.take_timeline()
        if self._running is not None:
            with self._running.graphs_lock:
                for engine in self._running.engines.values():
                    engine.controller.take_timeline()
                if self._workers_note and current() is self._running:
                    for graph in self._running.engines:
                        self._run(graph, "timeline.clear", [], 1)
        self._running = None
        if self._file is not None:
            self._file.close()
            self._file = None
        with _lock:
            _active = None

    def _collect(self):
        from .runtime import current

        running = self._running
        _core.stop_timeline()
        client, lost = _core.take_timeline()
        if current() is not running:
            raise RuntimeError(
                "the workers were shut down within the profiled block, and what they noted is "
                "gone: end the block before dtorch_mpi.shutdown()"
            )
        # Those that are still there: what the others noted has ended with them.
        graphs = [graph for graph in self._operators_before if graph in running.engines]
        stopped = {
            graph: self._ask("timeline.stop", [], 3, graph=graph).tolist() for graph in graphs
        }
        controllers = {
            graph: running.engines[graph].controller.take_timeline() for graph in graphs
        }
        self.lost = {"client": lost, "controller": sum(lost for _, lost in controllers.values())}
        self.lost |= {f"worker {worker}": 0 for worker in range(running.num_workers)}
        clocks = self._measure_clocks()
        began = self._began
        self.operators = [0] * running.num_workers
        self.clock_offsets = [clock.offset * 1e-9 for clock in began]
        self.clock_errors = [
            max(first.error, last.error) * 1e-9 for first, last in zip(began, clocks, strict=True)
        ]
        drifts = list(map(_Drift, began, clocks))
        self._trace = Trace(running, self._zero, self._first_records)
        self._trace.add(CLIENT, 0, client)
        for graph, (events, _) in controllers.items():
            self._trace.add(CONTROLLER, graph, events)
        for graph in graphs:
            before = self._read(self._operators_before[graph]).tolist()
            self._collect_graph(graph, before, stopped[graph], drifts)
        self._operators_before = None
        self._trace.events()  # names are looked up while the workers live, whose numbers they are

    def _collect_graph(self, graph, before, stopped, drifts):
        pieces = [[] for _ in stopped]
        for first in range(0, max(row[0] for row in stopped), _PIECE):
            rows = self._ask("timeline.events", [first, _PIECE], _PIECE * EVENT_BYTES, torch.uint8,
                             graph)  # fmt: skip
            for row, found, (kept, *_) in zip(rows, pieces, stopped, strict=True):
                count = min(max(kept - first, 0), _PIECE)
                found.append(row[:count * EVENT_BYTES].numpy().tobytes())
        for worker, (_, lost, operators) in enumerate(stopped):
            self.lost[f"worker {worker}"] += lost
            self.operators[worker] += operators - before[worker][0]
            events = b"".join(pieces[worker])
            self._trace.add(FIRST_WORKER + worker, graph, events, drifts[worker].here)

    def _run(self, graph, name, args, width, dtype=torch.int64):
        """One of the kernels of kernels/timeline.py, by every worker's thread of a graph."""
        with issuing_to(graph):
            return on_all_workers(name, args, self._running.num_workers, width, dtype)

    def _ask(self, name, args, width, dtype=torch.int64, graph=0):
        """A kernel's rows. A failure that nobody has read may come in their place: it is kept."""
        return self._read(self._run(graph, name, args, width, dtype))

    def _read(self, rows):
        while True:
            try:
                return rows.to_torch()
            except WorkerError as failure:
                if self._failures and self._failures[-1].record == failure.record:
                    raise  # the kernel's own
                self._failures.append(failure)

    def _measure_clocks(self):
        """A _Clock for each worker."""
        here = self._running.local_workers
        best = [_Clock(0, 0, 0)] * self._running.num_workers
        if len(here) == len(best):
            return best  # of this very process
        best = [None] * len(best)
        until = time.monotonic() + _PING_SECONDS
        for ping in range(_MOST_PINGS):
            if ping >= _FEWEST_PINGS and time.monotonic() > until:
                break
            asked = time.monotonic_ns()
            answers = self._ask("timeline.clock", [], 1).tolist()
            answered = time.monotonic_ns()
            error = (answered - asked + 1) // 2
            for worker, (there,) in enumerate(answers):
                if best[worker] is None or error < best[worker].error:
                    best[worker] = _Clock(there, there - (asked + answered) // 2, error)
        return [_Clock(0, 0, 0) if worker in here else clock for worker, clock in enumerate(best)]

    # ---- the events --------------------------------------------------------------------------

    def events(self) -> list[dict[str, Any]]:
        """The trace's events, a list of dicts as in the file.

        Those with "ph" "X" have a begin ("ts") and a duration ("dur"), in microseconds from the
        block's beginning; those with "i" are moments; those with "M" name processes ("pid" 0: the
        client, 1: the controller, 2 and up: workers 0 and up) and their rows ("tid"). Raises
        ValueError before the block has ended.
        """
        self._check_ended()
        return self._trace.events()

    def write(self, path: str | os.PathLike) -> None:
        """Write the trace to a file. Raises ValueError before the block has ended, and OSError."""
        self._check_ended()
        with open(path, "w") as file:
            self._write_to(file)

    def _check_ended(self):
        if self._trace is None:
            raise ValueError("the profile has no events yet: use it as `with profile: ...` first")

    def _write_to(self, file):
        head = {"lost_events": self.lost, "operators_executed": self.operators,
                "clock_offset_us": [offset * 1e6 for offset in self.clock_offsets],
                "clock_error_us": [error * 1e6 for error in self.clock_errors]}  # fmt: skip
        file.write(f'{{"displayTimeUnit": "ns", "otherData": {json.dumps(head)},\n')
        file.write('"traceEvents": [\n')
        separator = ""
        for event in self.events():
            file.write(separator + json.dumps(event))
            separator = ",\n"
        file.write("\n]}\n")


class _Clock:
    """A worker's clock against this one, as an exchange found it; nanoseconds."""

    __slots__ = ("there", "offset", "error")

    def __init__(self, there, offset, error):
        self.there, self.offset, self.error = there, offset, error


class _Drift:
    """A worker's clock between two measurements."""

    def __init__(self, first, last):
        self._from, self._offset = first.there, first.offset
        passed = last.there - first.there
        self._rate = (last.offset - first.offset) / passed if passed > 0 else 0

    def here(self, there):
        """The time on this clock when the worker's said `there`."""
        return there - self._offset - round((there - self._from) * self._rate)
