"""Takes out what nobody reads."""

from . import graph_pass
from .facts import can_fail, is_pure


@graph_pass
def dead_nodes(graph):
    """Remove nodes whose outputs are freed unread, if they have no effect and can't fail."""
    readers = {}
    for node in graph.nodes:
        if node.kind != "free":
            for value in node.inputs():
                readers[value.number] = readers.get(value.number, 0) + 1
    for node in reversed(list(graph.nodes)):
        if not is_pure(node) or can_fail(node):
            continue
        if any(not v.is_temporary or readers.get(v.number) for v in node.outputs):
            continue
        graph.remove(node, *(value.freed_by for value in node.outputs))
        for value in node.inputs():
            readers[value.number] -= 1
