"""Which operators of a window can run as one kernel."""

import math
from dataclasses import dataclass

import torch

from ..fusion.compiler.expressions import EXPRESSIONS, FILL, NUMBERS
from ..fusion.spec import name_of
from .arguments import Ints, Scalars, ScalarTensor
from .facts import is_pure
from .graph import Node, Value

# Of a tensor over all workers: less is over before it matters.
LEAST_ELEMENTS = 1 << 14
MOST_NODES = 64


# Operator that makes a tensor of one number -> that number, or None and which argument it is; then
# which argument the sizes are, and which one is a tensor of these sizes.
FILLS = {
    "aten::full": (None, 1, 0, None), "aten::full_like": (None, 1, None, 0),
    "aten::new_full": (None, 2, 1, None), "aten::zeros": (0, None, 0, None),
    "aten::zeros_like": (0, None, None, 0), "aten::new_zeros": (0, None, 1, None),
    "aten::ones": (1, None, 0, None), "aten::ones_like": (1, None, None, 0),
    "aten::new_ones": (1, None, 1, None),
}  # fmt: skip


@dataclass
class Part:
    """An operator that a kernel can do. name: of it in the kernel. arguments: values, Numbers,
    None, names of dtypes. sizes: an operator's argument that says the output's."""

    node: Node
    name: str
    arguments: list
    output: Value
    computes_in: object  # a floating dtype, or None
    sizes: object = None


@dataclass(eq=False)
class Number:
    value: object  # as it came, with its place in the record
    dtype: object


def number_of(value, dtype):
    """A number as a kernel of a dtype takes it."""
    return Number(value, torch.float32 if dtype == torch.bfloat16 else dtype)


def is_contiguous(value):
    expected = 1
    for size, stride in zip(reversed(value.sizes), reversed(value.strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def plain_number(argument, schema):
    """A number, if that is what an argument is."""
    number = argument.number if isinstance(argument, ScalarTensor) else argument
    of_operator = isinstance(argument, ScalarTensor) or str(schema.real_type) in ("number", "float")
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    return number if of_operator and is_number else None


def part_of(node, least=LEAST_ELEMENTS):
    """A node as a part of a kernel; None if it can't be one, or makes fewer elements than `least`.
    """
    if node.name in FILLS:
        return _fill_of(node, least)
    expression = EXPRESSIONS.get(node.name) if node.kind == "operator" else None
    if expression is None or not is_pure(node) or len(node.outputs) != 1:
        return None
    output = node.outputs[0]
    if output.dtype is None or output.base is not output or not output.sizes:
        return None
    if math.prod(output.sizes) < least or not is_contiguous(output):
        return None
    schema = node.overload()._schema.arguments
    dtypes, numbers, arguments = set(), [], []
    for place, (argument, described) in enumerate(zip(node.arguments, schema, strict=True)):
        if isinstance(argument, Value):
            extent = extent_of(argument, output)
            if extent is None or extent == "spread" and not expression.broadcasts:
                return None
            if place not in expression.masks:
                dtypes.add(argument.dtype)
            elif name_of(argument.dtype) != "bool":
                return None
            arguments.append(argument)
        elif argument is None:
            arguments.append(None)
        else:
            number = plain_number(argument, described)
            if number is None:
                return None
            numbers.append(number)
            arguments.append(number)
    if len(dtypes) != 1:
        return None
    (dtype,) = dtypes
    if not expression.allows(dtype) or output.dtype != (expression.result or dtype):
        return None
    if not dtype.is_floating_point and (
        any(isinstance(number, float) for number in numbers) or numbers and name_of(dtype) == "bool"
    ):
        return None
    arguments = [
        argument if argument is None or isinstance(argument, Value) else number_of(argument, dtype)
        for argument in arguments
    ]
    return Part(node, node.name, arguments, output, dtype if dtype.is_floating_point else None)


def _fill_of(node, least):
    output = node.outputs[0] if is_pure(node) else None
    if output is None or math.prod(output.sizes) < least:
        return None
    if output.dtype not in (*NUMBERS, torch.bfloat16):
        return None
    number, place, sizes, model = FILLS[node.name]
    if number is None:
        number = plain_number(node.arguments[place], node.overload()._schema.arguments[place])
    dtype = output.dtype
    if number is None or isinstance(number, float) and not dtype.is_floating_point:
        return None
    arguments = [number_of(number, dtype), name_of(dtype)]
    if model is not None:
        arguments.append(node.arguments[model])
        if extent_of(arguments[-1], output) != "whole":
            return None
    if not output.sizes or not is_contiguous(output):
        return None
    return Part(node, FILL, arguments, output, dtype if dtype.is_floating_point else None,
                None if sizes is None else node.arguments[sizes])  # fmt: skip


def extent_of(value, output):
    """Which elements of a value belong to the output's on every worker, as fusion/spec.py has it;
    None where a kernel can't have it."""
    if value.dtype is None:
        return None
    if value.sizes == ():
        return "one"
    if is_contiguous(value):
        if value.sizes == output.sizes:
            return "whole" if (value.sharding or 0) == (output.sharding or 0) else None
        return "spread" if _is_broadcast(value.sizes, output.sizes) else None
    # A view that repeats its elements.
    dims = [dim for dim, stride in enumerate(value.strides) if stride]
    own = Value(value.number, sizes=[value.sizes[dim] for dim in dims],
                strides=[value.strides[dim] for dim in dims])  # fmt: skip
    is_repeated = math.prod(own.sizes) < math.prod(value.sizes)
    is_spread = is_repeated and is_contiguous(own) and _is_broadcast(value.sizes, output.sizes)
    return "spread" if is_spread else None


def _is_broadcast(sizes, to):
    return len(sizes) <= len(to) and all(
        size in (1, whole) for size, whole in zip(reversed(sizes), reversed(to), strict=False)
    )


class Group:
    """Parts that run where the last of them stands."""

    def __init__(self, part):
        self.parts = []
        self.frees = []  # of values that it reads or makes, in its midst
        self.made, self.read = {}, {}
        self.computes_in = None
        self.add(part)

    def add(self, part):
        self.parts.append(part)
        self.made[id(part.output)] = part.output
        for value in part.arguments:
            if isinstance(value, Value):
                self.read[id(value)] = value
        self.computes_in = self.computes_in or part.computes_in

    def extent_of(self, value):
        return extent_of(value, self.parts[0].output)

    def can_take(self, other):
        return len(self.parts) + len(other.parts) < MOST_NODES and have_one_dtype(self, other)

    def take(self, other):
        self.parts += other.parts
        self.frees += other.frees
        self.made |= other.made
        self.read |= other.read
        self.computes_in = self.computes_in or other.computes_in

    def has_made_for(self, node):
        return any(id(value) in self.made for value in node.inputs())

    def accepts(self, part):
        output = self.parts[0].output
        return (len(self.parts) < MOST_NODES and output.sizes == part.output.sizes
                and (output.sharding or 0) == (part.output.sharding or 0)
                and have_one_dtype(self, part))

    def lets_by(self, node):
        """Whether what came before a node may as well run after it."""
        if node.kind == "free":
            value = node.arguments[0]
            if id(value) not in self.made and id(value) not in self.read:
                return True
            if value.is_temporary:  # else its slot may be taken by another
                self.frees.append(node)
            return value.is_temporary
        if node.kind != "operator" or node.overload() is None or self.has_made_for(node):
            return False
        for written in node.written:
            outside = written.base.made_by is None
            for value in self.read.values():
                # Any two values from before the window may share their memory.
                if value.base is written.base or outside and value.base.made_by is None:
                    return False
        return True


def find(graph, part_of=part_of, begin=lambda part: Group(part), left_out=()):
    """Groups of parts that are worth a kernel, none of them in another.

    part_of: a node as a part, or None. begin: the group that a part begins, or None. left_out: ids
    of nodes that are no parts.
    """
    open_, found = [], []
    for node in graph.nodes:
        part = part_of(node) if id(node) not in left_out else None
        joined = None
        still_open = []
        for group in open_:
            if part is None:
                goes_on = group.lets_by(node)
            elif not group.has_made_for(node):
                goes_on = True
            elif not group.accepts(part) or joined is not None and not joined.can_take(group):
                goes_on = False
            elif joined is not None:
                joined.take(group)
                continue
            else:
                joined, goes_on = group, True
            (still_open if goes_on else found).append(group)
        open_ = still_open
        if joined is not None:
            joined.add(part)
        elif part is not None and (group := begin(part)) is not None:
            open_.append(group)
    order = {id(node): at for at, node in enumerate(graph.nodes)}
    worth = [group for group in found + open_ if len(group.parts) > 1]
    for group in worth:
        group.parts.sort(key=lambda part: order[id(part.node)])
    return worth


def have_one_dtype(one, other):
    return one.computes_in == other.computes_in or None in (one.computes_in, other.computes_in)


def put_in_place(graph, group, call, gone):
    """Put a call where a group's last part stands, take its other nodes out, and have what it reads
    freed after it."""
    graph.replace(group.parts[-1].node, call)
    graph.remove(*gone)
    # Others may have gone with another group's values.
    early = set(map(id, graph.nodes[: graph.nodes.index(call)]))
    for free in group.frees:
        if id(free) in early:
            graph.move_after(free, call)


class Fused:
    """A group as a kernel: what it does, and the call that takes the group's place."""

    def __init__(self, graph, group):
        self._graph, self.group = graph, group
        members = {id(part.node) for part in group.parts}
        readers = {}
        for node in graph.nodes:
            if node.kind != "free":
                for value in node.inputs():
                    readers.setdefault(id(value), []).append(node)
        self.outputs = [
            part.output for part in group.parts
            if not part.output.is_temporary
            or any(id(node) not in members for node in readers.get(id(part.output), ()))
        ]  # fmt: skip
        self.inputs, self.numbers = [], []
        self.spec = self._describe()

    def _describe(self):
        made, inputs, nodes = {}, {}, []
        for at, part in enumerate(self.group.parts):
            given = []
            for argument in part.arguments:
                if isinstance(argument, Number):
                    given.append(["number", len(self.numbers)])
                    self.numbers.append(argument)
                elif argument is None or isinstance(argument, str):
                    given.append(argument)
                elif id(argument) in made:
                    given.append(["node", made[id(argument)]])
                else:
                    if id(argument) not in inputs:
                        inputs[id(argument)] = len(self.inputs)
                        self.inputs.append(argument)
                    given.append(["input", inputs[id(argument)]])
            nodes.append([part.name, given])
            made[id(part.output)] = at
        computes_in = self.group.computes_in
        return {
            "inputs": [[name_of(v.dtype), self.group.extent_of(v)] for v in self.inputs],
            "numbers": [name_of(number.dtype) for number in self.numbers],
            "nodes": nodes,
            "outputs": [made[id(value)] for value in self.outputs],
            "computes_in": None if computes_in is None else name_of(computes_in),
            "dtypes": [name_of(value.dtype) for value in self.outputs],
            "writes": [],
        }

    def _called(self):
        """(operator, its arguments behind those that all have)."""
        sizes = [part.sizes for part in self.group.parts if part.sizes is not None]
        return "dtorch::fused", sizes[0] if sizes else Ints()

    def put(self, kernel):
        """Have the kernel of this number do what the group's nodes do."""
        graph, group = self._graph, self.group
        last = group.parts[-1].node
        kept = set(map(id, self.outputs))
        inner = [part.output.freed_by for part in group.parts if id(part.output) not in kept]
        gone = [*(part.node for part in group.parts[:-1]), *inner]
        name, *others = self._called()
        numbers = Scalars(number.value for number in self.numbers)
        call = Node("operator", name, [kernel, self.inputs, numbers, *others],
                    outputs=list(self.outputs), returns=[list(self.outputs)], site=last.site,
                    stands_for=tuple(part.node for part in group.parts))  # fmt: skip
        for value in self.outputs:
            value.made_by = call
        put_in_place(graph, group, call, gone)
