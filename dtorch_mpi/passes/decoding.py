"""From the records of a window to its graph."""

import struct

from .. import _core
from ..kernels.registry import dtype_of_number
from .arguments import (
    Bools,
    Float,
    Floats,
    Int,
    Ints,
    Opaque,
    OptionalTensors,
    Scalars,
    ScalarTensor,
)
from .graph import Graph, Node, Value
from .wire_format import (
    BOOL,
    BOOL_LIST,
    COMPLEX,
    DOUBLE,
    DOUBLE_LIST,
    GENERATOR,
    HEADER_WORDS,
    INT,
    INT_LIST,
    KINDS,
    LOCAL_SIZES,
    LOCAL_STRIDES,
    NO_SLOT,
    NONE,
    OPTIONAL_SLOT_LIST,
    OUTPUT,
    OUTPUT_LIST,
    PAYLOAD,
    SCALAR_LIST,
    SCALAR_TENSOR,
    SHARDED,
    SHARDED_GENERATOR,
    SLOT,
    SLOT_LIST,
    SMALL_INT,
    STRING,
)

# Operators that share memory with their first argument and do not say so.
SILENT_VIEWS = {"aten::_unsafe_view", "aten::_reshape_alias"}


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
