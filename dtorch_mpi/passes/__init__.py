"""Rewriting of windows: each pass is a function over one `Graph`, in a file of its own.

A pass runs once for each window that comes again, in a thread beside the program, which goes on
meanwhile. What it leaves must have the same effect as the program's own nodes on every value that
lives on after the window, and on what other nodes read.

    @dt.graph_pass
    def my_pass(graph):
        for node in list(graph.nodes):
            ...

See `graph.Graph` for what can be read and changed.
"""

from collections.abc import Callable

from .graph import Graph, Node, Value

_registered = {}


def graph_pass(function: Callable[[Graph], None]) -> Callable[[Graph], None]:
    """Register a pass, under its name, to run after those that are there.

    Raises ValueError for a name that is taken.
    """
    name = function.__name__
    if name in _registered:
        raise ValueError(f"a pass named {name} is registered already: choose another name")
    _registered[name] = function
    return function


def registered() -> dict[str, Callable[[Graph], None]]:
    """{name: pass} in the order in which they run."""
    return dict(_registered)


def chosen(text: str) -> dict[str, Callable[[Graph], None]]:
    """The passes that a setting names: all, none, or names with commas between.

    Raises ValueError for a name that is not known.
    """
    if text in ("all", "none"):
        return registered() if text == "all" else {}
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _registered:
            raise ValueError(
                f"passes names {name!r}: expected all, none, or some of {', '.join(_registered)}"
            )
    return {name: function for name, function in _registered.items() if name in names}


from . import (  # noqa: E402, F401, I001 -- in this order
    common_subexpressions,
    redundant_collectives,
    dead_nodes,
    fusion,
    memory_reuse,
    early_collectives,
)

__all__ = ["Graph", "Node", "Value", "chosen", "graph_pass", "registered"]
