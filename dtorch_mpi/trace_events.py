"""A profile's events as those of Chrome's trace-event JSON: their names, rows and times."""

import struct
from collections import defaultdict
from operator import itemgetter

from . import _core
from .kernels.registry import dtype_of_number, kernel_names

_EVENT = struct.Struct("=qqQHHIIIII5q")  # struct Event of src/profiling/timeline.h
_REPLAYED, _FAILED, _REWRITTEN = 1, 2, 4
_NO_DTYPE = 0xFF

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

CLIENT, CONTROLLER, FIRST_WORKER = 0, 1, 2  # processes of the trace
_BATCHES, _WINDOWS = 0, 1                      # rows of the controller, for each graph
# Rows of a worker, for each graph: of its streams, then those of its collectives.
_OPERATORS, _COLLECTIVES, _ROWS = 0, 64, 128


class Trace:
    """What the client, the controller and the workers of a job noted.

    zero: the time from which events count, in nanoseconds of time.monotonic_ns(). first_records: by
    graph, the first of its records that belongs to the trace.
    """

    def __init__(self, running, zero, first_records):
        self._num_workers = running.num_workers
        self._names = _Names(running)
        self._zero = zero
        self._first_records = first_records
        self._parts = []

    def add(self, process, graph, events, here=None):
        """Take events of a process (CLIENT, CONTROLLER, FIRST_WORKER and up), as bytes.

        here: brings a worker's times to the client's clock.
        """
        self._parts.append((process, graph, events, here))

    def events(self):
        """All events as dicts, the names of processes and rows first."""
        timed = self._timed()
        return [*self._metadata(timed), *timed]

    def _metadata(self, timed):
        rows = {}
        for graph in sorted({graph for _, graph, *_ in self._parts}):
            of = f"graph {graph}: " if graph else ""
            for row, name in (_BATCHES, "batches"), (_WINDOWS, "windows"):
                rows[CONTROLLER, 2 * graph + row] = of + name
            for worker in range(self._num_workers):
                for row, name in (_OPERATORS, "operators"), (_COLLECTIVES, "collectives"):
                    rows[FIRST_WORKER + worker, graph * _ROWS + row] = of + name
        processes = {CLIENT: "client", CONTROLLER: "controller"}
        for thread in self._names.threads.values():
            rows[CLIENT, thread] = f"thread {thread}" if thread else "program"
        for worker in range(self._num_workers):
            processes[FIRST_WORKER + worker] = self._names.worker(worker)
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

    def _timed(self):
        found = []
        for pid, graph, events, here in self._parts:
            for event in _EVENT.iter_unpack(events):
                begin, end, record, kind, flags, number, site, detail, thread, dtype = event[:10]
                amounts = event[10:]
                if here is not None:
                    if record < self._first_records[graph]:
                        continue  # the sync that the beginning waits for
                    begin, end = here(begin), here(end)
                args = {"record": record}
                if kind >= _BATCH:
                    name = self._names.of_controller(kind, number, amounts, args)
                    tid = 2 * graph + (_BATCHES if kind == _BATCH else _WINDOWS)
                else:
                    name, more = self._names.of_record(kind, number, site, detail, dtype, amounts)
                    args |= more
                    row = _COLLECTIVES if kind == _REDISTRIBUTE else _OPERATORS + thread
                    tid = graph * _ROWS + row
                    if pid == CLIENT:
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
        if event["pid"] < FIRST_WORKER or event["tid"] % _ROWS != _COLLECTIVES:
            continue
        rows = ends[event["pid"], event["tid"]]
        row = next((row for row, free in enumerate(rows) if free <= begin), len(rows))
        rows[row:row + 1] = [-end]
        event["tid"] += row


def _meta(kind, pid, tid, **args):
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}


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
