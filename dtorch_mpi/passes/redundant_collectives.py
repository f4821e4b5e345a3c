"""Has two redistributions in a row done as one."""

from . import graph_pass
from .facts import (
    ALIASES,
    PARTIAL,
    communicates,
    is_collective,
    keeps_sums,
    packet,
    shardings,
    steps,
    written_bases,
)
from .graph import Node
from .wire_format import HEADER_WORDS


def _is_partial(number):
    return any(after & 0xFF == PARTIAL for *_, after in steps(0, number))


def _way(value):
    """The nodes between a value and what it is an alias of, that one's maker last."""
    way = [value.made_by]
    while way[-1] is not None and packet(way[-1]) in ALIASES:
        way.append(way[-1].arguments[0].made_by)
    return way


def _read_once(graph, way, written):
    return all(
        node.outputs[0].is_temporary and id(node.outputs[0].base) not in written
        and len(graph.users(node.outputs[0])) == 1
        for node in way
    )  # fmt: skip


@graph_pass
def redundant_collectives(graph):
    """Take a redistribution of what another one has made from where that took it.

    Summed everywhere and then cut becomes a reduce-scatter, cut and then gathered becomes nothing,
    a sum that was cut and then gathered becomes an all-reduce.
    """
    if keeps_sums():
        return
    written = written_bases(graph)
    for second in list(graph.nodes):
        if not is_collective(second):
            continue
        way = _way(second.arguments[0])
        first = way[-1]
        if first is None or not is_collective(first):
            continue
        (before, between), (again, after) = shardings(first), shardings(second)
        if between != again or _is_partial(after) or id(first.outputs[0]) in written:
            continue
        once = _read_once(graph, way, written)
        # Else the first is there anyway, and what it has made is nearer.
        if once or not communicates(steps(before, between)):
            _join(graph, way, second, once)


def _join(graph, way, second, once):
    first = way[-1]
    source = first.arguments[0]
    at = {id(node): place for place, node in enumerate(graph.nodes)}
    begin, end = at[id(first)], at[id(second)]
    outside = source.base.made_by is None
    for node in graph.nodes[begin:end]:
        if any(v.base is source.base or outside and v.base.made_by is None for v in node.written):
            return
    freed = source.freed_by
    if freed is not None and at[id(freed)] < end:
        if not source.is_temporary:
            return  # its slot may have been taken since
        graph.move_before(freed, graph.nodes[end + 1])
    joined = _redistribution(source, second, shardings(first)[0], (first, second))
    graph.replace(second, joined)
    if once:
        graph.remove(*way, *(node.outputs[0].freed_by for node in way))


def _redistribution(source, node, number, stands_for):
    """A node that does what the redistribution `node` does, from another value and sharding."""
    words = list(node.words)
    words[-2] = number
    output = node.outputs[0]
    made = Node("redistribute", f"redistribute {number} -> {words[-1]}", [source], [output],
                site=node.site, stands_for=stands_for, words=words,
                slots=[(2, source), (HEADER_WORDS, output)])  # fmt: skip
    output.made_by = made
    return made
