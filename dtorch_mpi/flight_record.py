"""Read a flight record: what a process was doing when it ended (src/wire/flight_record.h).

The watcher imports this file alone, under `python -I -S -E`, and stays for as long as the job:
so it imports only what the interpreter has loaded anyway.
"""

import struct

MAGIC = b"DTFLIGHT"
VERSION = 1
# The fields of FlightHeader, in its order; "x" stands for its reserved word.
HEADER = struct.Struct("=8s8I5Q3I4x64s32s2048s")
SITE = struct.Struct("=I4x120s")
ENTRY = struct.Struct("=QII")
OPERATOR_SIZE = 64
STATES = ("starting", "running", "waiting", "finishing", "finished", "failed")


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
        issued = f", issued at {self.site}" if self.site else ""
        return f"{self.name} (record {self.sequence}){issued}"


class FlightRecord:
    """A record that was read. `last` holds up to 64 Operators, the newest first."""

    __slots__ = ("pid", "rank", "world", "host", "role", "state", "signal", "fault_address",
                 "cause", "num_operators", "last")

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
     operators, sites, ring, num_operators, num_sites, ring_size, host, role,
     cause) = HEADER.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"{source} is a flight record of version {version}, expected {VERSION}")

    record = FlightRecord()
    record.pid, record.rank, record.world = pid, rank, world
    record.host, record.role = _text(host), _text(role)
    record.state = STATES[state] if state < len(STATES) else f"state {state}"
    record.signal, record.fault_address = signal, fault_address
    record.cause = cause[:cause_size].decode("utf-8", "replace")
    record.num_operators = sequence
    record.last = []
    for number in range(sequence, max(0, sequence - ring_size), -1):
        noted, op, site = ENTRY.unpack_from(data, ring + number % ring_size * ENTRY.size)
        if noted != number:
            continue  # being written when the process ended
        name = ""
        if op < num_operators:
            start = operators + op * OPERATOR_SIZE
            name = _text(data[start:start + OPERATOR_SIZE])
        site_id, site_text = SITE.unpack_from(data, sites + site % num_sites * SITE.size)
        record.last.append(
            Operator(number, name or f"op #{op}", _text(site_text) if site_id == site else ""))
    return record


def _text(raw):
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
