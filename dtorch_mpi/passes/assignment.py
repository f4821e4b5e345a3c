"""Which stream each operator of a window runs on, behind which others.

No pass: it changes nothing of what is run. The policy `branches` looks for stretches of a window in
which operators do not all depend on each other, and spreads these over several streams, each to the
one where it would be done first (list scheduling: R. L. Graham, Bounds for certain multiprocessing
anomalies, Bell System Technical Journal 45, 1966). On a CPU a stream is a thread of each worker.
"""

import math
import os
from dataclasses import dataclass

from .. import _core
from .facts import is_random, is_view, packet

MOST_STREAMS = 4
# Nanoseconds, as a core of some years ago takes: only whether it is worth it hangs on them.
_RECORD, _VIEW, _OPERATOR, _WAIT = 200, 1_000, 2_000, 15_000
_PER_BYTE, _PER_MULTIPLICATION = 0.25, 0.05
_LEAST = 100_000  # of a stretch, one after the other
_GAIN = 0.85      # of the time that it takes at most so divided
_MATMULS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear"}


@dataclass
class OperatorAssignInfo:
    """Where and when a node runs.

    stream: 0 is the graph's own thread. waits: nodes of the same section, by their place in it,
    whose events it waits for; each node records one.
    """

    stream: int
    waits: list


def branches(graph):
    """[(nodes, [OperatorAssignInfo])] of the stretches that run on several streams."""
    num_streams = min(MOST_STREAMS, os.cpu_count() or 1)
    if num_streams < 2:
        return []
    found = []
    for nodes in _stretches(graph):
        infos = _divide(nodes, num_streams)
        if infos is not None:
            graph.keep_together(*nodes)  # they run as one
            found.append((nodes, infos))
    return found


def _may_run_beside(node):
    if node.kind in ("free", "move"):
        return True
    # One that makes nothing checks what others made, which has no value if it fails.
    return (node.kind == "operator" and node.overload() is not None and not is_random(node)
            and bool(node.outputs or node.written)
            and not _core.is_users_operator(packet(node)))


def _stretches(graph):
    """Runs of nodes that may be divided."""
    run = []
    for node in [*graph.nodes, None]:
        if node is not None and _may_run_beside(node):
            run.append(node)
            continue
        # Frees at either end have nothing to run beside.
        while run and run[0].kind == "free":
            run.pop(0)
        while run and run[-1].kind == "free":
            run.pop()
        if sum(node.kind == "operator" for node in run) > 1:
            yield run
        run = []


def _bytes(value):
    return math.prod(value.sizes) * value.dtype.itemsize if value.dtype is not None else 0


def cost(node):
    """How long a node takes, roughly, in nanoseconds."""
    if node.kind != "operator":
        return _RECORD
    if is_view(node):
        return _VIEW
    time = _OPERATOR + _PER_BYTE * sum(map(_bytes, [*node.inputs(), *node.outputs]))
    if packet(node) in _MATMULS and node.outputs[0].sizes and node.inputs()[-1].sizes:
        out, other = node.outputs[0].sizes, node.inputs()[-1].sizes
        time += _PER_MULTIPLICATION * math.prod(out) * math.prod(other) / max(1, other[-1])
    return time


class _Memory:
    """Who has read and written a value's memory so far, by place."""

    def __init__(self):
        self.written = None
        self.read = []


def dependences(nodes):
    """For each node the places of those that must have run before it."""
    memories = {}
    made, used = {}, {}   # value -> place, places
    freed_outside = []    # whose slots the program may give to what comes then
    found = []
    for at, node in enumerate(nodes):
        needs = set()

        def memory(value):
            base = value.base
            # Any two values from before the window may share their memory.
            return memories.setdefault(None if base.made_by is None else id(base), _Memory())

        inputs = node.inputs()
        gone = inputs if node.kind in ("free", "move") else []
        for value in inputs:
            needs.add(made.get(id(value)))
            if value in gone:
                needs.update(used.get(id(value), ()))
                continue
            needs.add(memory(value).written)
            used.setdefault(id(value), []).append(at)
        for value in node.written:
            needs.update(memory(value).read)
            needs.add(memory(value).written)
        for value in inputs:
            if value not in gone:
                memory(value).read.append(at)
        for value in node.written:
            memory(value).written, memory(value).read = at, []
        for value in node.outputs:
            if not value.is_temporary and not value.is_new:
                needs.update(freed_outside)
            made[id(value)] = at
            used.setdefault(id(value), []).append(at)
        if node.kind == "free" and not inputs[0].is_temporary:
            freed_outside.append(at)
        found.append({place for place in needs if place is not None and place != at})
    return found


def _divide(nodes, num_streams):
    """The infos of a stretch, or None where it is not worth it."""
    costs = [cost(node) for node in nodes]
    total = sum(costs)
    if total < _LEAST:
        return None
    needs = dependences(nodes)
    free_at = [0.0] * num_streams   # when each stream is done with what it has
    seen = [[-1] * num_streams for _ in range(num_streams)]  # how far each knows the others are
    ends, streams, infos = [], [], []
    for at, node in enumerate(nodes):
        def begin_on(stream, at=at):
            ready = max((ends[n] + (_WAIT if streams[n] != stream else 0) for n in needs[at]),
                        default=0.0)
            return max(free_at[stream], ready)

        if node.kind == "operator":
            stream = min(range(num_streams), key=lambda s: (begin_on(s), s))
        else:  # where most of it was
            stream = streams[max(needs[at])] if needs[at] else 0
        waits = []
        for other in sorted(needs[at], reverse=True):
            if streams[other] != stream and other > seen[stream][streams[other]]:
                waits.append(other)
                seen[stream][streams[other]] = other
        ends.append(begin_on(stream) + costs[at])
        free_at[stream] = ends[-1]
        streams.append(stream)
        infos.append(OperatorAssignInfo(stream, waits))
    if max(free_at) + _WAIT > total * _GAIN:
        return None
    return infos


POLICIES = {"one": None, "communication": None, "branches": branches}


def text(sections):
    """Sections in words: a line for each node, on the column of its stream."""
    lines = []
    for nodes, infos in sections:
        for at, (node, info) in enumerate(zip(nodes, infos, strict=True)):
            waits = f"  waits for {sorted(info.waits)}" if info.waits else ""
            lines.append(f"{at:4} {'|   ' * info.stream}{node}{waits}")
        lines.append("")
    return "\n".join(lines)
