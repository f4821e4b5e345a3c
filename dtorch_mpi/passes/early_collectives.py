"""Lets collectives begin as soon as what they take is there, so that they go on beside the rest."""

import math

from . import graph_pass
from .facts import (
    ALIASES,
    PARTIAL,
    communicates,
    is_collective,
    is_view,
    keeps_sums,
    packet,
    shardings,
    steps,
)

# Bytes that are reduced together: the first ones begin soon if they are few, as in PyTorch's
# DistributedDataParallel. Its later buckets are larger (25 MiB), and the last begins the later.
FIRST_BUCKET, BUCKET = 1 << 20, 4 << 20


def _is_work(node):
    return node.kind == "kernel" or node.kind == "operator" and not is_view(node)


def _bytes(value):
    return math.prod(value.sizes) * value.dtype.itemsize


@graph_pass
def early_collectives(graph):
    """Begin reductions where their input is made, several as one; gathers one ahead of their use.

    Gathered tensors are large, so no more than one waits for its turn beside the one in use.
    """
    _look_through_aliases(graph)
    ready = _ready(graph)
    work = [0]
    for node in graph.nodes:
        work.append(work[-1] + _is_work(node))
    buckets = _Buckets(graph, work)
    turn = 0  # of the gather before
    for at, node in enumerate(graph.nodes):
        if not is_collective(node):
            continue
        way = steps(*shardings(node))
        if not communicates(way):
            continue
        if len(way) == 1 and way[0][1] & 0xFF == PARTIAL and way[0][2] == 0:
            buckets.wait(ready[id(node)], at, node)
            continue
        begin = max(ready[id(node)], turn)
        turn = at + 1
        if work[begin] < work[at]:
            graph.start_early(graph.nodes[begin], node)
    buckets.begin_all()


def _look_through_aliases(graph):
    """Have redistributions read what an alias is of: it is there sooner."""
    at = {id(node): place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if not is_collective(node):
            continue
        value = source = node.arguments[0]
        while source.made_by is not None and packet(source.made_by) in ALIASES:
            further = source.made_by.arguments[0]
            if further.freed_by is not None and at[id(further.freed_by)] < at[id(node)]:
                break
            source = further
        if source is not value:
            node.replace_input(value, source)


def _ready(graph):
    """{id of a redistribution: the place from which on its input is as it will be}."""
    made, written, outside, ready = {}, {}, 0, {}
    for at, node in enumerate(graph.nodes):
        if node.kind == "redistribute":
            value = node.arguments[0]
            base = value.base
            ready[id(node)] = max(made.get(id(value), 0), written.get(id(base), 0),
                                  outside if base.made_by is None else 0)  # fmt: skip
        for value in node.outputs:
            made[id(value)] = at + 1
        for value in node.written:
            written[id(value.base)] = at + 1
            if value.base.made_by is None:
                outside = at + 1  # any two from before the window may share their memory
    return ready


class _Buckets:
    """Reductions in the order in which their inputs come, a bucket for each kind."""

    def __init__(self, graph, work):
        self._graph, self._work = graph, work
        self._waiting = []  # (place from which on it could begin, its turn, node)

    def wait(self, ready, turn, node):
        self._waiting.append((ready, turn, node))

    def begin_all(self):
        open_ = {}
        limit = 0 if keeps_sums() else FIRST_BUCKET
        for ready, turn, node in sorted(self._waiting, key=lambda found: found[:2]):
            value = node.outputs[0]
            key = value.dtype, shardings(node)
            bucket = open_.setdefault(key, [])
            # All begin with the last, which must not come after the turn of the first.
            if bucket and ready > min(other[1] for other in bucket):
                self._begin(bucket)
                bucket.clear()
            bucket.append((ready, turn, node))
            if sum(_bytes(other.outputs[0]) for *_, other in bucket) >= limit:
                self._begin(bucket)
                bucket.clear()
                limit = limit and BUCKET
        for bucket in open_.values():
            self._begin(bucket)

    def _begin(self, bucket):
        if not bucket:
            return
        begin = max(ready for ready, *_ in bucket)
        if len(bucket) > 1 or self._work[begin] < self._work[bucket[0][1]]:
            nodes = [node for *_, node in sorted(bucket, key=lambda found: found[1])]
            self._graph.start_early(self._graph.nodes[begin], *nodes)
