"""Which operators over lists of tensors, or in place on one, can run as one kernel: an optimizer's
step, above all.
"""

import math

from ..fusion.compiler.expressions import EXPRESSIONS
from ..fusion.spec import name_of
from .arguments import Bools, Scalars
from .facts import is_pure
from .graph import Node, Value
from .pointwise_groups import (
    LEAST_ELEMENTS,
    Number,
    is_contiguous,
    number_of,
    plain_number,
    put_in_place,
)

PREFIX = "aten::_foreach_"
# Operator over lists -> what it does at each place, and whether that has a factor behind it.
ELEMENTWISE = {
    "add.Scalar": ("aten::add.Tensor", True), "add.ScalarList": ("aten::add.Tensor", True),
    "add.List": ("aten::add.Tensor", False), "sub.Scalar": ("aten::sub.Tensor", True),
    "sub.List": ("aten::sub.Tensor", False), "mul.Scalar": ("aten::mul.Tensor", False),
    "mul.ScalarList": ("aten::mul.Tensor", False), "mul.List": ("aten::mul.Tensor", False),
    "div.Scalar": ("aten::div.Tensor", False), "div.ScalarList": ("aten::div.Tensor", False),
    "div.List": ("aten::div.Tensor", False), "addcmul.Scalar": ("aten::addcmul", False),
    "addcmul.ScalarList": ("aten::addcmul", False), "addcdiv.Scalar": ("aten::addcdiv", False),
    "addcdiv.ScalarList": ("aten::addcdiv", False), "lerp.Scalar": ("aten::lerp.Scalar", False),
    "sqrt": ("aten::sqrt", False), "neg": ("aten::neg", False), "abs": ("aten::abs", False),
    "reciprocal": ("aten::reciprocal", False),
}  # fmt: skip


class ListPart:
    """An operator over lists that a kernel can do: at each place `name` of `arguments`, which are
    lists of values and Numbers. target: the list that it writes to or makes.
    """

    def __init__(self, node, name, arguments, target, is_in_place):
        self.node, self.name, self.arguments = node, name, arguments
        self.target, self.is_in_place = target, is_in_place


def _as_part(node):
    if node.kind != "operator":
        return None
    return _of_lists(node) if node.name.startswith(PREFIX) else _of_one(node)


def _of_one(node):
    """An operator on single tensors, as lists of one."""
    packet, dot, overload = node.name.partition(".")
    name = packet.removesuffix("_") + dot + overload
    expression = EXPRESSIONS.get(name)
    if expression is None or expression.masks or expression.result is not None:
        return None
    is_in_place = packet.endswith("_")
    target = node.arguments[:1] if is_in_place else node.outputs
    if not (node.written == target and not node.outputs if is_in_place else is_pure(node)):
        return None
    if len(target) != 1 or not expression.allows(target[0].dtype):
        return None
    dtype = target[0].dtype
    if not dtype.is_floating_point or math.prod(target[0].sizes) < LEAST_ELEMENTS:
        return None
    arguments = []
    for argument, schema in zip(node.arguments, node.overload()._schema.arguments, strict=True):
        number = None if isinstance(argument, Value) else plain_number(argument, schema)
        if number is None and not isinstance(argument, Value):
            return None
        arguments.append([argument] if number is None else number_of(number, dtype))
    values = [argument[0] for argument in arguments if not isinstance(argument, Number)]
    if not _alike([*target, *values], dtype):
        return None
    return ListPart(node, name, arguments, target, is_in_place)


def _of_lists(node):
    packet, dot, overload = node.name.removeprefix(PREFIX).partition(".")
    is_in_place = packet.endswith("_")
    found = ELEMENTWISE.get(packet.removesuffix("_") + dot + overload)
    if found is None:
        return None
    name, needs_factor = found
    lists = [argument for argument in node.arguments if _is_list(argument)]
    length = len(lists[0]) if lists else 0
    target = lists[0] if is_in_place and lists else node.outputs
    if not length or len(target) != length or any(len(values) != length for values in lists):
        return None
    dtype = lists[0][0].dtype
    if not EXPRESSIONS[name].allows(dtype) or not dtype.is_floating_point:
        return None
    if not all(_alike(values, dtype) for values in zip(*lists, target, strict=True)):
        return None
    numbers = [argument for argument in node.arguments if isinstance(argument, Scalars)]
    if any(len(given) != length for given in numbers):
        return None
    if sum(math.prod(value.sizes) for value in target) < LEAST_ELEMENTS:
        return None
    arguments = []
    for argument in node.arguments:
        if _is_list(argument):
            arguments.append(argument)
        elif isinstance(argument, (Scalars, int, float)) and not isinstance(argument, bool):
            arguments.append(number_of(argument, dtype))
        else:
            return None
    arguments += [number_of(1, dtype)] if needs_factor else []
    return ListPart(node, name, arguments, target, is_in_place)


def _is_list(argument):
    return (type(argument) is list and bool(argument)
            and all(isinstance(value, Value) for value in argument))  # fmt: skip


def _alike(values, dtype):
    """Whether values have the same elements on every worker."""
    first = values[0]
    return first.sizes is not None and all(
        value.dtype == dtype and value.sizes == first.sizes
        and (value.sharding or 0) == (first.sharding or 0) and is_contiguous(value)
        for value in values
    )


def _values(part):
    """Ids of the values of a part of single tensors."""
    lists = [argument for argument in part.arguments if not isinstance(argument, Number)]
    return {id(value) for values in (*lists, part.target) for value in values}


class ListGroup:
    """Parts in a row, with nothing but frees between."""

    def __init__(self):
        self.parts = []
        self.frees = []  # in its midst

    def goes_on_with(self, part):
        """Whether a part belongs here; of single tensors, only one that has to do with these."""
        if not self.parts or len(self.parts[0].target) != len(part.target):
            return not self.parts
        return len(part.target) > 1 or any(_values(part) & _values(other) for other in self.parts)

    def find_lists(self):
        """(lists written, lists only read, lists made), each once; None if they overlap."""
        written, read, made = {}, {}, {}
        for part in self.parts:
            for values in part.arguments:
                key = None if isinstance(values, Number) else tuple(map(id, values))
                if key is not None and key not in made:
                    read.setdefault(key, values)
            key = tuple(map(id, part.target))
            if not part.is_in_place:
                made[key] = part.target
            elif key not in made:
                written.setdefault(key, part.target)
        read = {key: values for key, values in read.items() if key not in written}
        # A read one may be a view; workers look whether it is one of memory that is written.
        own = [value for lists in (written, made) for values in lists.values() for value in values]
        bases = {id(value.base) for value in own}
        shared = any(id(value.base) in bases for values in read.values() for value in values)
        if shared or len(bases) != len(own) or any(value.base is not value for value in own):
            return None
        return list(written.values()), list(read.values()), list(made.values())


def find(graph):
    """Groups of parts that one kernel over lists can do."""
    found, group = [], ListGroup()

    def end():
        nonlocal group
        if len(group.parts) > 1:
            found.append(group)
        group = ListGroup()

    for node in graph.nodes:
        part = _as_part(node)
        if part is not None:
            if not group.goes_on_with(part):
                end()
            group.parts.append(part)
        elif node.kind != "free" or not node.arguments[0].is_temporary:
            end()
        elif group.parts:
            group.frees.append(node)
    end()
    return found


class FusedLists:
    """A group as a kernel; `spec` is None where it can't be one."""

    def __init__(self, graph, group):
        self._graph, self.group = graph, group
        self.spec = None
        lists = group.find_lists()
        if lists is None:
            return
        self.written, self.read, self._made = lists
        members = {id(part.node) for part in group.parts}
        made = {id(value) for values in self._made for value in values}
        outlives = any(not v.is_temporary for values in self._made for v in values)
        seen = any(
            id(node) not in members and node.kind != "free"
            and any(id(value) in made for value in node.inputs())
            for node in graph.nodes
        )  # fmt: skip
        if self.written and not outlives and not seen:
            self.numbers = []
            self.spec = self._describe()

    def _describe(self):
        inputs = [*self.written, *self.read]
        current = {tuple(map(id, values)): ["input", at] for at, values in enumerate(inputs)}
        nodes = []
        for at, part in enumerate(self.group.parts):
            given = []
            for argument in part.arguments:
                if isinstance(argument, Number):
                    given.append(["number", len(self.numbers)])
                    self.numbers.append(argument)
                else:
                    given.append(current[tuple(map(id, argument))])
            nodes.append([part.name, given])
            current[tuple(map(id, part.target))] = ["node", at]
        dtype = name_of(inputs[0][0].dtype)
        outputs = [current[tuple(map(id, values))][1] for values in self.written]
        return {
            "inputs": [[dtype, "whole"] for _ in inputs],
            "numbers": [name_of(number.dtype) for number in self.numbers],
            "nodes": nodes,
            "outputs": outputs,
            "computes_in": dtype,
            "dtypes": [dtype for _ in outputs],
            "writes": [[at, at] for at in range(len(outputs))],
        }

    def put(self, kernel):
        """Have the kernel of this number do what the group's nodes do."""
        graph, group = self._graph, self.group
        last = group.parts[-1].node
        listed = [isinstance(number.value, Scalars) for number in self.numbers]
        numbers = [n for number, each in zip(self.numbers, listed, strict=True)
                   for n in (number.value if each else [number.value])]  # fmt: skip
        written = [value for values in self.written for value in values]
        read = [value for values in self.read for value in values]
        call = Node("operator", "dtorch::fused_lists",
                    [kernel, len(self.written[0]), written, read, Scalars(numbers), Bools(listed)],
                    written=written, site=last.site,
                    stands_for=tuple(part.node for part in group.parts))  # fmt: skip
        inner = [value.freed_by for values in self._made for value in values]
        gone = [*(part.node for part in group.parts[:-1]), *inner]
        put_in_place(graph, group, call, gone)
