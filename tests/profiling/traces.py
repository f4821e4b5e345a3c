"""Looking into traces: events of a process or a row, and what must hold of any trace."""

CLIENT, CONTROLLER, FIRST_WORKER = 0, 1, 2
OPERATORS, COLLECTIVES = 0, 64
# Clocks are noted in nanoseconds and written in microseconds.
ROUNDING = 0.01


def of(events, pid, cat=None, tid=None):
    return [event for event in events if event["pid"] == pid and event["ph"] != "M"
            and cat in (None, event["cat"]) and tid in (None, event["tid"])]  # fmt: skip


def names_of(events):
    return [event["name"] for event in events]


def check_structure(events):
    """What Chrome's format and this profiler promise of each event."""
    named = set()
    for event in events:
        if event["ph"] == "M":
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ph"] in ("X", "i"), event
        assert isinstance(event["name"], str) and event["name"] and event["cat"], event
        # A worker by its clock's error.
        assert event["ts"] >= -ROUNDING or event["pid"] >= FIRST_WORKER, event
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
        assert isinstance(event["args"], dict), event
        assert ("process_name", event["pid"], 0) in named, event
        assert ("thread_name", event["pid"], event["tid"]) in named, event
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)


def check_nesting(events):
    """Slices of a row lie within each other or apart: viewers show no others."""
    rows = {}
    for event in events:
        if event["ph"] != "X":
            continue
        begin, end = event["ts"], event["ts"] + event["dur"]
        open_ends = rows.setdefault((event["pid"], event["tid"]), [])
        while open_ends and open_ends[-1] <= begin + ROUNDING:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1] + ROUNDING, event
        open_ends.append(end)


def check_order(events, errors_us):
    """No worker began what the client had not issued yet, as far as clocks can tell."""
    issued = {event["args"]["record"]: event for event in of(events, CLIENT)}
    compared = 0
    for worker, error in enumerate(errors_us):
        for event in of(events, FIRST_WORKER + worker):
            if event["cat"] == "replay":
                continue
            record, rewritten = event["args"]["record"], event["args"].get("rewritten")
            if rewritten and record not in issued:
                continue  # the first of those that it stands for was a free
            before = issued[record]
            assert event["ts"] + error + ROUNDING >= before["ts"] + before["dur"], (before, event)
            compared += 1
    return compared
