"""Lets an operator write over an input that dies with it."""

import torch

from . import graph_pass
from .facts import is_pure, is_view
from .graph import Node, Value


def _in_place(node):
    """The name of the operator's in-place form, or None."""
    operator = node.overload()
    packet, _, overload = node.name.partition(".")
    if operator is None or torch.Tag.pointwise not in operator.tags:
        return None
    namespace, name = packet.split("::")
    found = getattr(getattr(torch.ops, namespace), name + "_", None)
    found = getattr(found, overload or "default", None)
    if found is None:
        return None
    ours, theirs = operator._schema.arguments, found._schema.arguments
    same = len(ours) == len(theirs) and all(
        a.name == b.name and a.type == b.type for a, b in zip(ours, theirs, strict=True)
    )
    return f"{packet}_.{overload}" if same and overload else f"{packet}_" if same else None


def _is_own(value, viewed):
    """Whether nothing else shares a value's memory, and nothing but this window has seen it."""
    made_by = value.made_by
    return (value.is_temporary and not value.is_new and id(value) not in viewed
            and value.base is value and made_by.kind in ("operator", "move"))


def _layout(value):
    return value.dtype, value.sizes, value.strides, value.sharding


@graph_pass
def memory_reuse(graph):
    """Run pointwise operators in place where the input is a temporary that is freed right after.

    The same kernel over the same numbers, so the same bits; one less tensor at a time.
    """
    viewed = {id(value.base) for value in graph.values if value.base is not value}
    for node in list(graph.nodes):
        if not is_pure(node) or is_view(node) or len(node.outputs) != 1 or node.kind != "operator":
            continue
        source, made = node.arguments[0] if node.arguments else None, node.outputs[0]
        if not isinstance(source, Value) or not _is_own(source, viewed) or source.dtype is None:
            continue
        if _layout(source) != _layout(made) or node.inputs().count(source) != 1:
            continue
        at = graph.nodes.index(node)
        # With nothing but other frees between.
        after = at + 1
        while after < len(graph.nodes) and graph.nodes[after].kind == "free" \
                and graph.nodes[after] is not source.freed_by:  # fmt: skip
            after += 1
        if after == len(graph.nodes) or graph.nodes[after] is not source.freed_by:
            continue
        name = _in_place(node)
        if name is None:
            continue
        both = (node, source.freed_by)
        write = Node("operator", name, node.arguments, returns=[None], written=[source],
                     site=node.site, stands_for=both)  # fmt: skip
        move = Node("move", "move", [source], outputs=[made], stands_for=both)
        made.made_by = move
        graph.replace(node, write, move)
        graph.remove(source.freed_by)
