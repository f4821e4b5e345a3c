"""Read a flight record: what a process was doing when it ended (src/wire/flight_record.h).

The watcher imports this file alone, under `python -I -S -E`, and stays for as long as the job:
so it imports only what the interpreter has loaded anyway.
"""

import os
import struct

MAGIC = b"DTFLIGHT"
VERSION = 2
# The fields of FlightHeader, in its order.
HEADER = struct.Struct("=8s8I6Q4I64s32s2048s")
SITE = struct.Struct("=I4x120s")
ENTRY = struct.Struct("=QII")
# Of struct Activity (src/wire/activity.h).
ACTIVITY = struct.Struct("=Q8I64s24x")
OPERATOR_SIZE = 64
STATES = ("starting", "running", "waiting", "finishing", "finished", "failed", "told")
# Kinds of records (src/wire/record.h) that are of use to a reader.
OPERATOR, KERNEL = 1, 12
KINDS = {
    5: "making a mesh", 7: "taking in a tensor", 8: "reading a value", 9: "a sync",
    10: "a redistribution", 11: "reading a value", 21: "waiting for another graph",
    23: "taking a tensor of another graph",
}
WAITS = (
    "", "waits for other workers in a collective", "waits for another of its graphs",
    "waits for data from rank 0",
)


class Operator:
    """One operator that was run: its place in the sequence (from 1), its name, the user's line."""

    __slots__ = ("sequence", "name", "site")

    def __init__(self, sequence, name, site):
        self.sequence = sequence
        self.name = name
        self.site = site

    def __repr__(self):
        return f"Operator({self.sequence}, {self.name!r}, {self.site!r})"

    def __str__(self):
        return _issued(f"{self.name} (record {self.sequence})", self.site)


class Activity:
    """What one thread of a worker is at.

    `count` goes up with each record that it begins. `doing` (its record) and `wait` (for whom it
    waits before it can go on with that) are texts, empty where it does neither; names is a
    function that gives an operator's name by its number, sites the text of a place in the program.
    """

    __slots__ = ("count", "is_used", "graph", "thread", "kind", "doing", "wait")

    def __init__(self, data, names=str, sites=str):
        (self.count, self.is_used, self.graph, self.thread, self.kind, number, site, wait,
         wait_site, kernel) = ACTIVITY.unpack(data)
        self.doing = self.wait = ""
        if self.kind:
            if self.kind == OPERATOR:
                what = f"operator {names(number) or f'#{number}'}"
            elif self.kind == KERNEL:
                what = f"kernel {_text(kernel)}"
            else:
                what = KINDS.get(self.kind, f"a record of kind {self.kind}")
            self.doing = _issued(what, sites(site))
        if wait:
            text = WAITS[wait] if wait < len(WAITS) else f"waits ({wait})"
            self.wait = _issued(text, sites(wait_site))


class FlightRecord:
    """A record that was read. `last` holds up to 64 Operators, the newest first; `activities`
    what each thread of the worker was at."""

    __slots__ = ("pid", "rank", "world", "host", "role", "state", "signal", "fault_address",
                 "cause", "num_operators", "activities", "last")

    def __repr__(self):
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__[:-1])
        return f"FlightRecord({fields}, last={self.last[:3]!r}...)"


def read(source):
    """Read the record in a file (a path or a file descriptor); returns a FlightRecord.

    Raises:
        ValueError: the file is no flight record, or one of another version.
        OSError: the file cannot be read.
    """
    with open(source, "rb", closefd=not isinstance(source, int)) as file:
        file.seek(0)
        data = file.read()
    if len(data) < HEADER.size or data[:8] != MAGIC:
        raise ValueError(f"{source} is not a flight record: it starts with {data[:8]!r}")
    (_, version, _, pid, rank, world, state, signal, cause_size, sequence, fault_address,
     operators, sites, ring, activities, num_operators, num_sites, ring_size, num_activities, host,
     role, cause) = HEADER.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"{source} is a flight record of version {version}, expected {VERSION}")

    record = FlightRecord()
    record.pid, record.rank, record.world = pid, rank, world
    record.host, record.role = _text(host), _text(role)
    record.state = STATES[state] if state < len(STATES) else f"state {state}"
    record.signal, record.fault_address = signal, fault_address
    record.cause = cause[:cause_size].decode("utf-8", "replace")
    record.num_operators = sequence
    def name_of(op):
        start = operators + op * OPERATOR_SIZE
        return _text(data[start:start + OPERATOR_SIZE]) if op < num_operators else ""

    def site_of(site):
        site_id, text = SITE.unpack_from(data, sites + site % num_sites * SITE.size)
        return _text(text) if site_id == site else ""

    record.last = []
    for number in range(sequence, max(0, sequence - ring_size), -1):
        noted, op, site = ENTRY.unpack_from(data, ring + number % ring_size * ENTRY.size)
        if noted != number:
            continue  # being written when the process ended
        record.last.append(Operator(number, name_of(op) or f"op #{op}", site_of(site)))
    found = (data[activities + i * ACTIVITY.size:][:ACTIVITY.size] for i in range(num_activities))
    record.activities = [
        activity for activity in (Activity(one, name_of, site_of) for one in found)
        if activity.is_used
    ]  # fmt: skip
    return record


def counts_of(fd):
    """{(graph, thread): count} of what is at work, in the record that is open as `fd`, quickly.

    None stands for one that waits for records.
    """
    header = os.pread(fd, HEADER.size, 0)
    if len(header) < HEADER.size or header[:8] != MAGIC:
        return {}
    fields = HEADER.unpack(header)
    offset, num_activities = fields[14], fields[18]
    data = os.pread(fd, num_activities * ACTIVITY.size, offset)
    counts = {}
    for count, is_used, graph, thread, kind, *_ in ACTIVITY.iter_unpack(data):
        if is_used:
            counts[graph, thread] = count if kind else None
    return counts


def _issued(what, site):
    return f"{what}, issued at {site}" if site else what


def _text(raw):
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
