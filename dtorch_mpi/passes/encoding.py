"""From a graph that passes have changed to the records that replace a window's."""

import struct

from .. import _core
from .arguments import Bools, Floats, Ints, Opaque, OptionalTensors, Scalars, ScalarTensor
from .graph import Value
from .wire_format import (
    BOOL,
    BOOL_LIST,
    COMPLEX,
    DOUBLE,
    DOUBLE_LIST,
    HEADER_WORDS,
    INT,
    INT_LIST,
    NO_SLOT,
    NONE,
    NUMBERS,
    OPTIONAL_SLOT_LIST,
    OUTPUT,
    OUTPUT_IGNORED,
    OUTPUT_LIST,
    PAYLOAD,
    SCALAR_LIST,
    SCALAR_TENSOR,
    SHARDED,
    SLOT,
    SLOT_LIST,
    SMALL_INT,
    STRING,
)


class _Encoder:
    """Records of nodes, with values' numbers for slots."""

    def __init__(self):
        self.words = []
        self.numbers = []  # (word of the window, word here)
        self.operators = {}  # number -> name, of those that the program may not have called

    def node(self, node, offsets):
        begin = len(self.words)
        if node.words:
            self.words += node.words
            for word, value in node.slots:
                old = self.words[begin + word]
                whole = word == 2 or not self._is_tag(node, word)
                self.words[begin + word] = value.number if whole else old & ~PAYLOAD | value.number
            if node.numbers:
                offset = offsets[node.record]
                self.numbers += [(word, begin + word - offset) for word in node.numbers]
            return
        self.words += [0, NUMBERS[node.kind], 0, node.site]
        if node.kind == "free":
            self.words[begin + 2] = node.arguments[0].number
        elif node.kind == "move":
            self.words += [node.arguments[0].number, node.outputs[0].number]
        else:
            self._operator(node, begin)
        self.words[begin] = len(self.words) - begin

    @staticmethod
    def _is_tag(node, word):
        """Whether a slot's word holds a tag too: a list's elements do not."""
        return node.words[word] >> 24 in (SLOT, OUTPUT)

    def _operator(self, node, begin):
        number = _core.number_operator(node.name)
        self.operators[number] = node.name
        sharded = any(v.sharding for v in (*node.inputs(), *node.outputs))
        self.words[begin + 1] |= (len(node.arguments) | (SHARDED if sharded else 0)) << 16
        self.words[begin + 2] = number
        # A profile shows the shapes of the call that it is another form of.
        calls = [other.words[HEADER_WORDS] for other in node.stands_for if other.kind == "operator"]
        self.words.append(calls[0] if len(calls) == 1 else 0)
        for argument in node.arguments:
            self._argument(argument)
        for returned in node.returns or node.outputs:
            if returned is None:
                self.words.append(OUTPUT_IGNORED << 24)
            elif isinstance(returned, list):
                self.words.append(OUTPUT_LIST << 24 | len(returned))
                for value in returned:
                    self.words += [value.number, value.sharding or 0] if sharded else [value.number]
            else:
                self.words.append(OUTPUT << 24 | returned.number)
                if sharded:
                    self.words.append(returned.sharding or 0)

    def _number(self, number):
        word = getattr(number, "word", None)
        if isinstance(number, bool):
            self.words.append(BOOL << 24 | number)
        elif isinstance(number, int) and getattr(number, "small", -(1 << 23) <= number < 1 << 23):
            if word is not None:
                self.numbers.append((word, len(self.words)))
            self.words.append(SMALL_INT << 24 | number & PAYLOAD)
        elif isinstance(number, complex):
            self.words.append(COMPLEX << 24)
            self._raw("2d", number.real, number.imag)
        else:
            self.words.append((INT if isinstance(number, int) else DOUBLE) << 24)
            if word is not None:
                self.numbers += [(word + i, len(self.words) + i) for i in range(2)]
            self._raw("q" if isinstance(number, int) else "d", number)

    def _raw(self, form, *numbers):
        data = struct.pack(form, *numbers)
        self.words += struct.unpack(f"{len(data) // 4}I", data)

    def _argument(self, argument):
        if argument is None:
            self.words.append(NONE << 24)
        elif isinstance(argument, Value):
            self.words.append(SLOT << 24 | argument.number)
        elif isinstance(argument, (bool, int, float, complex)):
            self._number(argument)
        elif isinstance(argument, Opaque):
            self.words += argument.words
        elif isinstance(argument, ScalarTensor):
            self.words.append(SCALAR_TENSOR << 24 | argument.dtype | argument.wrapped << 8)
            self._number(argument.number)
        elif isinstance(argument, Scalars):
            self.words.append(SCALAR_LIST << 24 | len(argument))
            for number in argument:
                self._number(number)
        elif isinstance(argument, Ints):
            self.words.append(INT_LIST << 24 | len(argument))
            self._raw(f"{len(argument)}q", *argument)
        elif isinstance(argument, Floats):
            self.words.append(DOUBLE_LIST << 24 | len(argument))
            self._raw(f"{len(argument)}d", *argument)
        elif isinstance(argument, Bools):
            self.words += [BOOL_LIST << 24 | len(argument), *map(int, argument)]
        elif isinstance(argument, list):
            tag = OPTIONAL_SLOT_LIST if isinstance(argument, OptionalTensors) else SLOT_LIST
            self.words.append(tag << 24 | len(argument))
            self.words += [NO_SLOT if value is None else value.number for value in argument]
        elif isinstance(argument, str):
            self.words += _string(argument)
        else:
            raise TypeError(f"got an argument of type {type(argument).__name__}: expected a value, "
                            "a list of them, a number, a string or None")


def _string(text):
    data = text.encode()
    padded = data + bytes(-len(data) % 4)
    return [STRING << 24 | len(data), *struct.unpack(f"{len(padded) // 4}I", padded)]


def encode(graph, sections=()):
    """(number of tensors that only the rewritten plan has, operators with early starts and
    sections, regions) as words.

    sections: [(nodes, [OperatorAssignInfo])] that run on several streams.

    As Kind::kRewritePlan of the wire has them. None for a graph that is as it was.
    """
    offsets, at = [], 0
    for node in graph.program:
        offsets.append(at)
        at += len(node.words)
    operators, words = {}, []
    regions = graph.regions()
    for first, last, nodes in regions:
        encoder = _Encoder()
        for node in nodes:
            encoder.node(node, offsets)
        words += [first, last, len(encoder.numbers), len(encoder.words)]
        words += [word for pair in encoder.numbers for word in pair]
        words += encoder.words
        operators |= encoder.operators
    early = _early_starts(graph, regions)
    if not words and early == [0] and not sections:
        return None
    definitions = [len(operators)]
    for number, name in operators.items():
        packet, _, overload = name.partition(".")
        definitions += [number, *_string(packet), *_string(overload)]
    num_program = sum(1 for value in graph.values if not value.is_new)
    assigned = _sections(graph, regions, sections)
    return len(graph.values) - num_program, definitions + early + assigned, words


def _places(graph, regions):
    """By node's id: its region, and which of its records it is."""
    places = {id(node): (0, node.record) for node in graph.nodes}
    for number, (_, _, nodes) in enumerate(regions, 1):
        places |= {id(node): (number, record) for record, node in enumerate(nodes)}
    return places


def _sections(graph, regions, sections):
    """What runs on several streams, as words, in the order of the nodes."""
    places = _places(graph, regions)
    words = [len(sections)]
    for nodes, infos in sections:
        words += [*places[id(nodes[0])], len(nodes)]
        for info in infos:
            words += [info.stream, len(info.waits), *info.waits]
    return words


def _early_starts(graph, regions):
    """Where redistributions may begin, as words, in the order of the nodes."""
    places = _places(graph, regions)
    order = {id(node): at for at, node in enumerate(graph.nodes)}
    # A later pass may have taken some of them out.
    starts = [
        (before, nodes) for before, nodes in graph.early_starts
        if all(id(node) in order for node in [before, *nodes])
    ]
    words = [len(starts)]
    for before, nodes in sorted(starts, key=lambda start: order[id(start[0])]):
        words += [*places[id(before)], len(nodes)]
        words += [word for node in nodes for word in places[id(node)]]
    return words
