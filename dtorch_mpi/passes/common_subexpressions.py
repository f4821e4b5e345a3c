"""Has what is worked out twice worked out once: equal redistributions, above all."""

from . import graph_pass
from .arguments import ScalarTensor
from .facts import ALIASES, Versions, is_gather, is_pure, is_view, packet, written_bases
from .graph import Value

# Their numbers say where a part lies, and may be others the next time.
_POSITIONS = {"aten::select", "aten::slice", "aten::select_backward", "aten::slice_backward"}


def _word(argument):
    number = argument.number if isinstance(argument, ScalarTensor) else argument
    return getattr(number, "word", None)


def _varying_words(node):
    """Where numbers stand that do not belong to the program: a learning rate, a position."""
    operator = node.overload()
    if operator is None:
        return set()
    found = set()
    for argument, value in zip(operator._schema.arguments, node.arguments, strict=True):
        fixed = argument.type.kind() in ("IntType", "OptionalType") and isinstance(value, int)
        if not fixed or packet(node) in _POSITIONS or str(argument.real_type) == "number":
            found.update(map(_word, value if isinstance(value, list) else [value]))
    return found


def _key(node, versions, same):
    varying = _varying_words(node)

    def of(argument):
        if isinstance(argument, Value):
            return ("value", same.get(argument.number, argument.number), versions.of(argument))
        if isinstance(argument, list):
            return (type(argument).__name__, *map(of, argument))
        word = _word(argument)
        return (type(argument).__name__, repr(argument), word if word in varying else None)

    return (node.kind, node.name, *map(of, node.arguments))


@graph_pass
def common_subexpressions(graph):
    """Read the first result of two equal nodes in the place of the second.

    Only of temporaries that nobody writes to: one may live longer for it, and must not change.
    """
    written = written_bases(graph)
    # Views may outlive what they are of.
    outlived = {id(value.base) for value in graph.values if not value.is_temporary}
    versions, known = Versions(), {}
    same = {}  # number of a value -> of the first one that is equal to it
    gathers = []
    for node in list(graph.nodes):
        versions.note(node)
        if not is_pure(node) or len(node.outputs) != 1:
            continue
        value = node.outputs[0]
        if is_view(node):
            # It may be written through; but what reads it reads the same.
            source = node.inputs()[0].number
            if packet(node) in ALIASES:
                same[value.number] = same.get(source, source)
            else:
                same[value.number] = known.setdefault(_key(node, versions, same), value.number)
            continue
        if not value.is_temporary or id(value) in written or id(value) in outlived:
            continue
        key = _key(node, versions, same)
        first = known.setdefault(key, node)
        if is_gather(node):
            # To keep one while others come and go would undo what cutting has saved.
            if first is not node and gathers[-1] is not first:
                first = known[key] = node
            if first is node:
                gathers.append(node)
        if first is not node:
            same[value.number] = first.outputs[0].number
            _share(graph, first.outputs[0], node)


def _share(graph, first, node):
    second = node.outputs[0]
    order = {id(other): at for at, other in enumerate(graph.nodes)}
    for other in graph.nodes:
        if other.kind != "free" and any(v is second for v in other.inputs()):
            other.replace_input(second, first)
    for value in graph.values:
        if value.base is second:
            value.base = first
    last = second.freed_by
    if order[id(first.freed_by)] < order[id(last)]:
        # The first lives as long as the second would have.
        graph.move_before(first.freed_by, last)
    graph.remove(node, last)
    graph.keep_together(node, first.freed_by)
