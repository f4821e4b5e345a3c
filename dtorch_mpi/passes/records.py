"""Between the records of the wire (src/wire/record.h) and graphs."""

import struct
from dataclasses import dataclass

from .. import _core
from ..kernels.registry import dtype_of_number
from .graph import Graph, Node, Value

HEADER_WORDS = 4
NO_SLOT = (1 << 24) - 1
SHARDED = 1 << 15
PAYLOAD = 0xFFFFFF

KINDS = {1: "operator", 2: "free", 7: "upload", 8: "get", 9: "sync", 10: "redistribute",
         11: "describe", 12: "kernel", 14: "mark", 17: "move"}  # fmt: skip
NUMBERS = {name: number for number, name in KINDS.items()}

# Tags of values.
(NONE, SLOT, SMALL_INT, INT, DOUBLE, BOOL, COMPLEX, INT_LIST, DOUBLE_LIST, BOOL_LIST, SLOT_LIST,
 OPTIONAL_SLOT_LIST, SCALAR_LIST, STRING, DEVICE, HOST_DEVICE, SCALAR_TENSOR, GENERATOR,
 LOCAL_SIZES, OUTPUT, OUTPUT_LIST, OUTPUT_IGNORED, LOCAL_STRIDES,
 SHARDED_GENERATOR) = range(24)  # fmt: skip

# Operators that share memory with their first argument and do not say so.
SILENT_VIEWS = {"aten::_unsafe_view", "aten::_reshape_alias"}


# Numbers that came with the program may be others the next time: `word` says where they stand.
class Int(int):
    word = None
    small = False


class Float(float):
    word = None


class Ints(list):
    """A list of ints, where a plain one is of tensors; the others likewise."""


class Floats(list):
    pass


class Bools(list):
    pass


class Scalars(list):
    pass


class OptionalTensors(list):
    pass


@dataclass(frozen=True)
class ScalarTensor:
    """A 0-dim tensor that travels by value. wrapped: it was a Python number."""

    number: object
    dtype: int
    wrapped: bool


@dataclass(frozen=True)
class Opaque:
    """An argument that no pass need look into: a generator's state, sizes of a local part."""

    words: tuple

    def __str__(self):
        return "..."


WORKERS_DEVICE, HOST = Opaque((DEVICE << 24,)), Opaque((HOST_DEVICE << 24,))


class _Decoder:
    def __init__(self, words):
        self.words = words
        self.at = 0
        self.nodes = []
        self.values = []
        self.alive = {}  # slot -> value

    def graph(self, number):
        while self.at < len(self.words):
            self._record()
        return Graph(number, self.nodes, self.values)

    def _use(self, slot):
        if slot not in self.alive:
            self.alive[slot] = self._new(slot, None)
        value = self.alive[slot]
        self.node.slots.append((self.at - self.begin, value))
        return value

    def _new(self, slot, made_by):
        value = Value(len(self.values), made_by=made_by)
        self.values.append(value)
        self.alive[slot] = value
        return value

    def _define(self, slot):
        value = self._new(slot, self.node)
        self.node.slots.append((self.at - self.begin, value))
        self.node.outputs.append(value)
        return value

    def _data(self, count=1):
        self.node.numbers += range(self.at, self.at + count)

    def _record(self):
        self.begin = begin = self.at
        length, kind_and_count, number, site = self.words[begin : begin + HEADER_WORDS]
        kind, count = KINDS[kind_and_count & 0xFFFF], kind_and_count >> 16
        end = begin + length
        self.node = node = Node(kind, kind, [], site=site, record=len(self.nodes),
                                words=self.words[begin:end])  # fmt: skip
        self.nodes.append(node)
        self.at = begin + 2
        if kind in ("free", "get", "describe", "redistribute"):
            node.arguments.append(self._use(number))
        elif kind == "upload":
            self._define(number)
        self.at = begin + HEADER_WORDS
        getattr(self, "_" + kind, lambda count: None)(count)
        self.at = end

    def _free(self, count):
        value = self.node.arguments[0]
        value.freed_by = self.node
        del self.alive[self.words[self.begin + 2]]

    def _get(self, count):
        for _ in range(3):
            self._number()

    _describe = _sync = _get

    def _upload(self, count):
        value = self.node.outputs[0]
        value.dtype = dtype_of_number(self._number())
        value.sizes, value.strides = tuple(self._ints()), tuple(self._ints())
        value.sharding = self.words[self.at]
        self.node.numbers.clear()  # these belong to the program
        self.at += 1
        if self.words[self.at] >> 24 == STRING:
            size = (self.words[self.at] & PAYLOAD) + 3 >> 2
            self.at += 1
            self._data(size)
        else:
            self._number()

    def _redistribute(self, count):
        source = self.node.arguments[0]
        if count:
            target = self._use(self.words[self.at] & PAYLOAD)
            self.node.arguments.append(target)
            self.node.written.append(target)
        else:
            target = self._define(self.words[self.at] & PAYLOAD)
        self.at += 1
        dtype = dtype_of_number(self._number())
        sizes, strides = tuple(self._ints()), tuple(self._ints())
        self.node.numbers.clear()
        before, after = self.words[self.at : self.at + 2]
        self.node.name = f"redistribute {before} -> {after}"
        for value, sharding in ((source, before), (target, after)):
            value.dtype, value.sizes, value.strides = dtype, sizes, strides
            value.sharding = sharding

    def _kernel(self, count):
        for is_data in (False, True):
            size = (self.words[self.at] & PAYLOAD) + 3 >> 2
            self.at += 1
            if is_data:
                self._data(size)
            self.at += size
        for _ in range(count):
            value = self._define(self.words[self.at] & PAYLOAD)
            self.at += 1
            kept = list(self.node.numbers)
            value.dtype, value.sizes = dtype_of_number(self._number()), tuple(self._ints())
            self.node.numbers = kept
            value.sharding = self.words[self.at]
            self.at += 1

    def _operator(self, count):
        node, entry = self.node, self.words[self.at]
        self.at += 1
        node.name = _core.operator_name(node.words[2])
        node.arguments = [self._argument() for _ in range(count & (SHARDED - 1))]
        sharded, end = bool(count & SHARDED), self.begin + len(node.words)
        returns = []
        while self.at < end:
            tag, payload = self.words[self.at] >> 24, self.words[self.at] & PAYLOAD
            made = []
            if tag == OUTPUT:
                made.append(self._define(payload))
                self.at += 1
                if sharded:
                    made[-1].sharding = self.words[self.at]
                    self.at += 1
            else:
                self.at += 1
                for _ in range(payload if tag == OUTPUT_LIST else 0):
                    made.append(self._define(self.words[self.at]))
                    self.at += 1
                    if sharded:
                        made[-1].sharding = self.words[self.at]
                        self.at += 1
            returns.append(made)
        self._describe_values(entry, returns)
        self._find_writes(returns)

    def _describe_values(self, entry, returns):
        known = _core.known_call(entry) if entry else None
        if known is None:
            return
        _, inputs, outputs = known
        pairs = list(zip(self.node.inputs(), inputs, strict=False))
        for made, metas in zip(returns, outputs, strict=False):
            pairs += zip(made, metas, strict=False)
        for value, (dtype, sizes, strides, _, sharding) in pairs:
            value.dtype, value.sizes, value.strides = dtype_of_number(dtype), sizes, strides
            value.sharding = sharding

    def _find_writes(self, returns):
        operator = self.node.overload()
        if operator is None:
            self.node.written = self.node.inputs()  # for all that is known
            return
        schema = operator._schema
        for argument, value in zip(schema.arguments, self.node.arguments, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.node.written += value if isinstance(value, list) else [value]
        for returned, made in zip(schema.returns, returns, strict=False):
            silent = self.node.name.partition(".")[0] in SILENT_VIEWS
            if made and (silent or returned.alias_info is not None):
                source = next(iter(self.node.inputs()), None)
                for value in made:
                    value.base = source.base if source is not None else value

    def _ints(self):
        count = self.words[self.at] & PAYLOAD
        self._data_after_tag(2 * count)
        raw = struct.pack(f"{2 * count}I", *self.words[self.at : self.at + 2 * count])
        self.at += 2 * count
        return Ints(struct.unpack(f"{count}q", raw))

    def _data_after_tag(self, count):
        self.at += 1
        self._data(count)

    def _number(self):
        word = self.words[self.at]
        tag, payload = word >> 24, word & PAYLOAD
        if tag in (SMALL_INT, BOOL):
            self._data()
            self.at += 1
            if tag == BOOL:
                return payload != 0
            number = Int(payload - (1 << 24) if payload >= 1 << 23 else payload)
            number.word, number.small = self.at - 1, True
            return number
        size = {INT: 2, DOUBLE: 2, COMPLEX: 4}[tag]
        self._data_after_tag(size)
        raw = struct.pack(f"{size}I", *self.words[self.at : self.at + size])
        self.at += size
        if tag == COMPLEX:
            return complex(*struct.unpack("2d", raw))
        number = Int(*struct.unpack("q", raw)) if tag == INT else Float(*struct.unpack("d", raw))
        number.word = self.at - size
        return number

    def _argument(self):
        begin = self.at
        tag, payload = self.words[begin] >> 24, self.words[begin] & PAYLOAD
        if tag in (SMALL_INT, INT, DOUBLE, BOOL, COMPLEX):
            return self._number()
        if tag == INT_LIST:
            return self._ints()
        if tag == SLOT:
            value = None if payload == NO_SLOT else self._use(payload)
            self.at += 1
            return value
        self.at += 1
        if tag == NONE:
            return None
        if tag in (SLOT_LIST, OPTIONAL_SLOT_LIST):
            values = [] if tag == SLOT_LIST else OptionalTensors()
            for _ in range(payload):
                slot = self.words[self.at]
                values.append(None if slot == NO_SLOT else self._use(slot))
                self.at += 1
            return values
        if tag == SCALAR_LIST:
            return Scalars(self._number() for _ in range(payload))
        if tag == SCALAR_TENSOR:
            return ScalarTensor(self._number(), payload & 0xFF, bool(payload >> 8))
        if tag == DOUBLE_LIST:
            self._data(2 * payload)
            raw = struct.pack(f"{2 * payload}I", *self.words[self.at : self.at + 2 * payload])
            self.at += 2 * payload
            return Floats(struct.unpack(f"{payload}d", raw))
        if tag == BOOL_LIST:
            self._data(payload)
            self.at += payload
            return Bools(bool(word) for word in self.words[self.at - payload : self.at])
        if tag == STRING:
            size = payload + 3 >> 2
            raw = struct.pack(f"{size}I", *self.words[self.at : self.at + size])[:payload]
            self.at += size
            return raw.decode()
        if tag == GENERATOR:
            self._data(4)
            self.at += 4
        elif tag == SHARDED_GENERATOR:
            self.at += 1 + 2 * payload
            self._data(4)
            self.at += 4
        elif tag == LOCAL_SIZES:
            self.at += 1 + 2 * payload
        elif tag == LOCAL_STRIDES:
            self.at += 1 + 4 * payload
        return Opaque(tuple(self.words[begin : self.at]))


def decode(number, data):
    """The graph of a window, from its records as bytes."""
    return _Decoder(list(struct.unpack(f"{len(data) // 4}I", data))).graph(number)


# ---- the other way ----------------------------------------------------------------------------


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


def redistribution(source, node, number, stands_for):
    """A node that does what the redistribution `node` does, from another value and sharding."""
    words = list(node.words)
    words[-2] = number
    output = node.outputs[0]
    made = Node("redistribute", f"redistribute {number} -> {words[-1]}", [source], [output],
                site=node.site, stands_for=stands_for, words=words,
                slots=[(2, source), (HEADER_WORDS, output)])  # fmt: skip
    output.made_by = made
    return made
