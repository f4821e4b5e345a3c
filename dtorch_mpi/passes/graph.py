"""A window of the program as a graph: what passes read and change."""

from dataclasses import dataclass, field

import torch


@dataclass(eq=False)
class Value:
    """A tensor that nodes of a window name.

    number: which of the window's. dtype, sizes, strides, sharding: of the global tensor; None
    where no record says (a value that only data knows). made_by: the node that makes it, None for
    one that comes from before the window. freed_by: the node that frees it, None for one that
    lives on. base: the value whose memory it shares, itself if it is no view.
    """

    number: int
    dtype: torch.dtype | None = None
    sizes: tuple | None = None
    strides: tuple | None = None
    sharding: int | None = None
    made_by: "Node | None" = None
    freed_by: "Node | None" = None
    base: "Value" = None
    is_new: bool = False  # made by a pass: only the rewritten window has it

    def __post_init__(self):
        if self.base is None:
            self.base = self

    @property
    def is_temporary(self):
        """Whether nothing outside of the window ever sees it."""
        return self.made_by is not None and self.freed_by is not None

    def __str__(self):
        return f"%{self.number}"

    def describe(self):
        if self.dtype is None:
            return str(self)
        dtype = str(self.dtype).removeprefix("torch.")
        where = f" @{self.sharding}" if self.sharding else ""
        return f"{self}: {dtype}[{', '.join(map(str, self.sizes))}]{where}"


@dataclass(eq=False)
class Node:
    """One thing that workers do.

    kind: operator, free, redistribute, upload, get, sync, describe, kernel, mark or move. name: of
    an operator, such as aten::add.Tensor; else the kind. arguments: an operator's, in the order of
    its schema: values, lists of them, numbers, None; of the others, the values that they read.
    outputs: values that it makes, flat. written: values that it writes to. site: the user's line,
    by number. returns: of an operator that a pass has made, what becomes of each return: a value,
    a list of them, None for one that is not kept; empty: each is an output. record: which of the
    window's records it is; None for a node that a pass has made. stands_for: nodes of the program
    in whose place a made one is.
    """

    kind: str
    name: str
    arguments: list
    outputs: list = field(default_factory=list)
    written: list = field(default_factory=list)
    site: int = 0
    returns: list = field(default_factory=list)
    record: int | None = None
    stands_for: tuple = ()
    words: list = field(default_factory=list, repr=False)  # as the program wrote them
    slots: list = field(default_factory=list, repr=False)  # (word, value) of those that name one
    numbers: list = field(default_factory=list, repr=False)  # words that hold data, not structure
    is_changed: bool = False

    def inputs(self):
        """The values that it reads, in order; one that is read twice comes twice."""
        found = []
        for argument in self.arguments:
            for value in argument if isinstance(argument, list) else [argument]:
                if isinstance(value, Value):
                    found.append(value)
        return found

    def replace_input(self, old, new):
        """Read another value in the place of one."""
        self.arguments = [
            [new if value is old else value for value in argument]
            if isinstance(argument, list) else new if argument is old else argument
            for argument in self.arguments
        ]
        self.slots = [(word, new if value is old else value) for word, value in self.slots]
        self.is_changed = True

    def overload(self):
        """PyTorch's operator (torch.ops...), or None for a node that is none."""
        if self.kind != "operator":
            return None
        namespace, _, rest = self.name.partition("::")
        packet, _, overload = rest.partition(".")
        found = getattr(getattr(torch.ops, namespace), packet, None)
        return getattr(found, overload or "default", None) if found is not None else None

    def __str__(self):
        def text(argument):
            if isinstance(argument, list):
                return "[" + ", ".join(map(text, argument)) + "]"
            return str(argument)

        made = ", ".join(value.describe() for value in self.outputs)
        call = f"{self.name}({', '.join(map(text, self.arguments))})"
        return f"{made} = {call}" if made else call


class Graph:
    """A window: nodes in the order in which they run, and the values between them."""

    def __init__(self, number, nodes, values):
        self.number = number
        self.nodes = nodes
        self.values = values
        self.program = tuple(nodes)  # as the user wrote it
        self.early_starts = []  # [(node, redistributions)]: see start_early
        self.kernels = None  # who has fused kernels made (fusion/agreement.py), if anybody has
        self._spans = []

    def new_value(self, like):
        """A temporary that only the rewritten window has, with another's metadata."""
        value = Value(len(self.values), like.dtype, like.sizes, like.strides, like.sharding,
                      is_new=True)  # fmt: skip
        self.values.append(value)
        return value

    def users(self, value):
        """The nodes that read or write a value, in order; not the one that frees it."""
        return [node for node in self.nodes
                if node.kind != "free" and any(v is value for v in node.inputs())]

    def remove(self, *nodes):
        """Take nodes out; as one step for whoever leaves the window between them."""
        gone = set(map(id, nodes))
        self.nodes = [node for node in self.nodes if id(node) not in gone]
        self.keep_together(*nodes)

    def insert(self, before, node):
        self.nodes.insert(self.nodes.index(before), node)
        self.keep_together(*node.stands_for)

    def replace(self, old, *new):
        """Put nodes in the place of one."""
        at = self.nodes.index(old)
        self.nodes[at : at + 1] = new
        for node in new:
            self.keep_together(old, *node.stands_for)

    def move_before(self, node, other):
        self.nodes.remove(node)
        self.nodes.insert(self.nodes.index(other), node)
        self.keep_together(node, other)

    def move_after(self, node, other):
        self.nodes.remove(node)
        self.nodes.insert(self.nodes.index(other) + 1, node)
        self.keep_together(node, other)

    def start_early(self, before, *redistributions):
        """Have redistributions begin before another node runs: as one collective, where each is
        one reduction and they are of one dtype.

        Their values are put in their places at their own turn, and waited for where they are read.
        Workers do it where they know of all these nodes by then. Nothing in between may write to
        what they read.
        """
        self.early_starts.append((before, list(redistributions)))

    def keep_together(self, *nodes):
        """Have the program's records from the first to the last of these run as one."""
        records = [r for node in nodes for r in _records(node)]
        if records:
            self._spans.append((min(records), max(records) + 1))

    def regions(self):
        """[(first, last, nodes)]: nodes that take the place of the program's records there."""
        count = len(self.program)
        inside = {r for first, last in self._spans for r in range(first + 1, last)}
        # The first record that the nodes from each place on have to do with.
        least = [count]
        for node in reversed(self.nodes):
            least.append(min([least[-1], *_records(node)]))
        least.reverse()
        regions, begin, begin_record, most = [], 0, 0, 0
        for at in range(len(self.nodes) + 1):
            # Places that are between nodes and between records too.
            for record in range(most, least[at] + 1):
                if record in inside or record <= begin_record:
                    continue
                nodes = self.nodes[begin:at]
                same = [node.record for node in nodes] == list(range(begin_record, record))
                if not same or any(node.is_changed for node in nodes):
                    regions.append((begin_record, record, nodes))
                begin, begin_record = at, record
            if at < len(self.nodes):
                most = max([most, *(r + 1 for r in _records(self.nodes[at]))])
        assert begin == len(self.nodes) and begin_record == count
        return regions

    def __str__(self):
        begun = {}
        for before, redistributions in self.early_starts:
            made = ", ".join(str(node.outputs[0]) for node in redistributions)
            begun.setdefault(id(before), []).append(f"begin({made})")
        return "\n".join(
            line for node in self.nodes for line in [*begun.get(id(node), ()), str(node)]
        )

    def snapshot(self):
        """(text, Graphviz source) of the graph as it is now."""
        return str(self), self.dot()

    def dot(self):
        """The graph in Graphviz' language."""
        lines = ["digraph window {", "  node [shape=box, fontname=monospace];"]
        names = {id(node): f"n{i}" for i, node in enumerate(self.nodes)}
        for node in self.nodes:
            if node.kind != "free":
                label = node.name.replace('"', "'")
                lines.append(f'  {names[id(node)]} [label="{label}"];')
        outside = set()
        for node in self.nodes:
            if node.kind == "free":
                continue
            for value in node.inputs():
                maker = names.get(id(value.made_by))
                if maker is None:
                    maker = f"v{value.number}"
                    if value.number not in outside:
                        outside.add(value.number)
                        lines.append(f'  {maker} [label="{value.describe()}", shape=ellipse];')
                lines.append(f'  {maker} -> {names[id(node)]} [label="{value}"];')
        return "\n".join([*lines, "}"])


def _records(node):
    found = [] if node.record is None else [node.record]
    return found + [r for other in node.stands_for for r in _records(other)]
