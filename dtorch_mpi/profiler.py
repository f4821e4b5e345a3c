"""One timeline of client, controller and workers, as Chrome's trace-event JSON."""

import json
import os
import struct
import threading
import time
from collections import defaultdict
from operator import itemgetter

import torch

from . import _core
from .engine import issuing_to
from .errors import WorkerError
from .kernels.registry import dtype_of_number, kernel_names
from .kernels.timeline import EVENT_BYTES, on_all_workers

_EVENT = struct.Struct("=qqQHHIIIII5q")  # struct Event of src/profiling/timeline.h
_REPLAYED, _FAILED, _REWRITTEN = 1, 2, 4
_NO_DTYPE = 0xFF
_MAX_EVENTS = 1 << 24
_PIECE = 1 << 13  # events that are brought from each worker at once
_FEWEST_PINGS, _MOST_PINGS, _PING_SECONDS = 8, 64, 0.1

# Kinds of records (src/wire/record.h), and of the controller's events (src/profiling/timeline.h).
_OPERATOR, _UPLOAD, _GET, _SYNC, _REDISTRIBUTE, _DESCRIBE, _KERNEL, _REPLAY = (
    1, 7, 8, 9, 10, 11, 12, 16,
)  # fmt: skip
_BATCH, _WINDOW, _WINDOW_REPLAY, _DEPARTURE, _NEW_PLAN = range(0x100, 0x105)
_CATEGORIES = {
    _OPERATOR: "operator", _UPLOAD: "upload", _GET: "read", _SYNC: "sync",
    _REDISTRIBUTE: "redistribute", _DESCRIBE: "read", _KERNEL: "kernel", _REPLAY: "replay",
    _BATCH: "batch", _WINDOW: "window", _WINDOW_REPLAY: "replay", _DEPARTURE: "departure",
    _NEW_PLAN: "plan",
}  # fmt: skip

_CLIENT, _CONTROLLER, _FIRST_WORKER = 0, 1, 2  # processes of the trace
_BATCHES, _WINDOWS = 0, 1                      # rows of the controller, for each graph
# Rows of a worker, for each graph: of its streams, then those of its collectives.
_OPERATORS, _COLLECTIVES, _ROWS = 0, 64, 128

_lock = threading.Lock()
_active = None  # the Profile that is being taken


def profile(path=None, *, max_events=1 << 17):
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

    def __init__(self, path=None, *, max_events=1 << 17):
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
        self._parts = None
        self._file = None
        self._failures = []
        self._running = None
        self._workers_note = False
        self._operators_before = None

    # ---- the block ---------------------------------------------------------------------------

    def __enter__(self):
        global _active
        with _lock:
            if _active is not None:
                raise ValueError(
                    "a profile is being taken already, and there is one timeline: end that `with "
                    "dt.profile()` block before this one, or leave this one out"
                )
            _active = self
        try:
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind, error, traceback):
        try:
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
        self._parts = [(_CLIENT, 0, client, None)]
        for graph, (events, _) in controllers.items():
            self._parts.append((_CONTROLLER, graph, events, None))
        for graph in graphs:
            before = self._read(self._operators_before[graph]).tolist()
            self._collect_graph(graph, before, stopped[graph], drifts)
        self._operators_before = None
        self._names = _Names(running)
        # While the workers live, whose numbers they are.
        for _ in self._timed_events():
            pass

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
            self._parts.append((_FIRST_WORKER + worker, graph, events, drifts[worker]))

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

    def events(self):
        """The trace's events, a list of dicts as in the file.

        Those with "ph" "X" have a begin ("ts") and a duration ("dur"), in microseconds from the
        block's beginning; those with "i" are moments; those with "M" name processes ("pid" 0: the
        client, 1: the controller, 2 and up: workers 0 and up) and their rows ("tid"). Raises
        ValueError before the block has ended.
        """
        self._check_ended()
        timed = self._timed_events()
        return [*self._metadata(timed), *timed]

    def write(self, path):
        """Write the trace to a file. Raises ValueError before the block has ended, and OSError."""
        self._check_ended()
        with open(path, "w") as file:
            self._write_to(file)

    def _check_ended(self):
        if self._parts is None:
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

    def _metadata(self, timed):
        rows = {}
        for graph in sorted({graph for _, graph, *_ in self._parts}):
            of = f"graph {graph}: " if graph else ""
            for row, name in (_BATCHES, "batches"), (_WINDOWS, "windows"):
                rows[_CONTROLLER, 2 * graph + row] = of + name
            for worker in range(len(self.operators)):
                for row, name in (_OPERATORS, "operators"), (_COLLECTIVES, "collectives"):
                    rows[_FIRST_WORKER + worker, graph * _ROWS + row] = of + name
        processes = {_CLIENT: "client", _CONTROLLER: "controller"}
        for thread in self._names.threads.values():
            rows[_CLIENT, thread] = f"thread {thread}" if thread else "program"
        for worker in range(len(self.operators)):
            processes[_FIRST_WORKER + worker] = self._names.worker(worker)
        for event in timed:
            pid, graph, row = event["pid"], *divmod(event["tid"], _ROWS)
            name = "collectives" if row > _COLLECTIVES else f"stream {row}"
            rows.setdefault((pid, event["tid"]), f"graph {graph}: {name}" if graph else name)
        for pid, name in processes.items():
            yield _meta("process_name", pid, 0, name=name)
            yield _meta("process_sort_index", pid, 0, sort_index=pid)
        for (pid, tid), name in rows.items():
            yield _meta("thread_name", pid, tid, name=name)
            yield _meta("thread_sort_index", pid, tid, sort_index=tid)

    def _timed_events(self):
        found = []
        for pid, graph, events, drift in self._parts:
            for event in _EVENT.iter_unpack(events):
                begin, end, record, kind, flags, number, site, detail, thread, dtype = event[:10]
                amounts = event[10:]
                if drift is not None:
                    if record < self._first_records[graph]:
                        continue  # the sync that the beginning waits for
                    begin, end = drift.here(begin), drift.here(end)
                args = {"record": record}
                if kind >= _BATCH:
                    name = self._names.of_controller(kind, number, amounts, args)
                    tid = 2 * graph + (_BATCHES if kind == _BATCH else _WINDOWS)
                else:
                    name, more = self._names.of_record(kind, number, site, detail, dtype, amounts)
                    args |= more
                    row = _COLLECTIVES if kind == _REDISTRIBUTE else _OPERATORS + thread
                    tid = graph * _ROWS + row
                    if pid == _CLIENT:
                        tid = self._names.thread(thread)
                if flags & _REPLAYED:
                    args["replayed"] = True
                if flags & _REWRITTEN:
                    args["rewritten"] = True
                if flags & _FAILED:
                    args["failed"] = True
                moment = kind in (_DEPARTURE, _NEW_PLAN)
                found.append((
                    begin, -end,
                    {"name": name, "cat": _CATEGORIES[kind], "ph": "i" if moment else "X",
                     "pid": pid, "tid": tid, "ts": (begin - self._zero) / 1e3,
                     **({"s": "t"} if moment else {"dur": (end - begin) / 1e3}), "args": args},
                ))  # fmt: skip
        found.sort(key=itemgetter(0, 1))
        _spread(found)
        return [event for *_, event in found]


def _spread(found):
    """Give collectives that go on at the same time rows of their own."""
    ends = defaultdict(list)  # by worker and graph: when each of its rows is free again
    for begin, end, event in found:
        if event["pid"] < _FIRST_WORKER or event["tid"] % _ROWS != _COLLECTIVES:
            continue
        rows = ends[event["pid"], event["tid"]]
        row = next((row for row, free in enumerate(rows) if free <= begin), len(rows))
        rows[row:row + 1] = [-end]
        event["tid"] += row


def _meta(kind, pid, tid, **args):
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}


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


class _Names:
    """What the numbers in events stand for, looked up once each."""

    def __init__(self, running):
        self._first_rank = running.first_rank
        self._kernels = {name_hash(name): name for name in kernel_names()}
        self._records = {}
        self._sites = {}
        self._calls = {}
        self._shardings = {}
        self.threads = {}  # the client's, by the order in which they come

    def worker(self, worker):
        rank = "" if self._first_rank is None else f" (rank {self._first_rank + worker})"
        return f"worker {worker}{rank}"

    def thread(self, number):
        return self.threads.setdefault(number, len(self.threads))

    def of_controller(self, kind, number, amounts, args):
        args["records"] = amounts[0]
        if kind == _BATCH:
            args["bytes"] = amounts[1]
            return "batch"
        if kind == _WINDOW:
            return "window"
        args["plan"] = number
        return {_WINDOW_REPLAY: "replay", _DEPARTURE: "departure", _NEW_PLAN: "new plan"}[kind] + (
            f" of plan {number}" if kind != _NEW_PLAN else f" {number}"
        )

    def of_record(self, kind, number, site, detail, dtype, amounts):
        """(name, args) of a record's event."""
        if kind == _REPLAY:
            first, last = amounts[:2]
            return f"replay of plan {number}", {"plan": number, "records": last - first}
        args = {"site": self._site(site)}
        if kind == _OPERATOR:
            inputs, outputs = self._call(detail)
            if inputs is not None:
                args |= {"inputs": inputs, "outputs": outputs}
            return self._operator(number), args
        if dtype != _NO_DTYPE:
            args["tensor"] = _shape(dtype, [size for size in amounts if size >= 0])
        if kind == _REDISTRIBUTE:
            return f"redistribute {self._sharding(number)} -> {self._sharding(detail)}", args
        if kind == _KERNEL:
            return f"kernel {self._kernels.get(detail, '?')}", args
        return {_UPLOAD: "upload", _GET: "read value", _SYNC: "sync",
                _DESCRIBE: "read metadata"}[kind], args  # fmt: skip

    def _operator(self, number):
        if number not in self._records:
            self._records[number] = _core.operator_name(number)
        return self._records[number]

    def _site(self, number):
        if number not in self._sites:
            self._sites[number] = _core.site_text(number)
        return self._sites[number]

    def _sharding(self, number):
        from .mesh import sharding_of

        if number not in self._shardings:
            _, placements = sharding_of(number)
            self._shardings[number] = (
                "replicated" if placements is None else f"[{', '.join(map(repr, placements))}]"
            )
        return self._shardings[number]

    def _call(self, number):
        if number not in self._calls:
            known = _core.known_call(number) if number else None
            if known is not None:
                _, inputs, outputs = known
                known = (
                    [self._tensor(meta) for meta in inputs],
                    [self._tensor(meta) for output in outputs for meta in output],
                )
            self._calls[number] = known or (None, None)
        return self._calls[number]

    def _tensor(self, meta):
        dtype, sizes, _, _, sharding = meta
        text = _shape(dtype, sizes)
        return f"{text} {self._sharding(sharding)}" if sharding else text


def _shape(dtype, sizes):
    name = str(dtype_of_number(dtype)).removeprefix("torch.")
    return f"{name}{list(sizes)}"


def name_hash(name):
    """FNV-1a, as src/profiling/record_event.h."""
    value = 0x811C9DC5
    for byte in name.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
