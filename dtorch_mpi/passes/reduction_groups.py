"""Which operators of a window can run as one kernel that reduces rows: last dims of a tensor."""

import math
from dataclasses import dataclass

import torch

from ..fusion.compiler.reductions import REDUCTIONS
from ..mesh import packed_of
from . import pointwise_groups
from .facts import SHARD, is_pure
from .graph import Value
from .pointwise_groups import (
    FILLS,
    LEAST_ELEMENTS,
    MOST_NODES,
    Fused,
    Group,
    Part,
    have_one_dtype,
    is_contiguous,
)

MOST_COLUMNS = 1 << 14  # a kernel sums them up in vectors, one after the other: this long is exact
LEAST_ROWS = 32  # else there is nothing for threads to share
BACKWARDS = {"aten::_softmax_backward_data", "aten::_log_softmax_backward_data"}
SOFTMAXES = {"aten::_softmax", "aten::_log_softmax"}


@dataclass
class Reduction(Part):
    """An operator that needs all columns of a row. dims: how many last dims make a row. whole: a
    value of them. extent: of its output, as fusion/spec.py has it."""

    dims: int = 0
    whole: Value | None = None
    extent: str = ""


def part_of(node):
    """A node as a part of such a kernel; None if it can't be one."""
    if node.name in REDUCTIONS:
        return _reduction_of(node)
    part = None if node.name in FILLS else pointwise_groups.part_of(node, least=1)
    return part if part is not None and part.computes_in != torch.bfloat16 else None


def _reduction_of(node):
    if not is_pure(node) or len(node.outputs) != 1 or not isinstance(node.arguments[0], Value):
        return None
    is_softmax, is_backward = node.name in SOFTMAXES, node.name in BACKWARDS
    values = node.arguments[: 2 if is_backward else 1]
    whole, output = values[0], node.outputs[0]
    if whole.dtype not in (torch.float32, torch.float64) or output.dtype != whole.dtype:
        return None
    if output.base is not output or not all(map(is_contiguous, (*values, output))):
        return None
    if any(_layout(value) != _layout(whole) for value in values):
        return None
    rank = len(whole.sizes)
    if is_softmax or is_backward:
        given, extent = [node.arguments[len(values)]], "whole"
        if is_softmax and node.arguments[2] is not False:
            return None
    else:
        given, keeps = node.arguments[1:3]
        extent = "column" if keeps else "reduced"
        if not given or node.arguments[3:] not in ([], [None]):
            return None
    dims = sorted(dim % rank for dim in given) if rank else []
    if not dims or dims != list(range(rank - len(dims), rank)) or len(dims) == rank:
        return None
    columns = math.prod(whole.sizes[dims[0] :])
    rows = math.prod(whole.sizes[: dims[0]])
    if not 1 < columns <= MOST_COLUMNS or rows < LEAST_ROWS or _is_cut(whole, dims[0]):
        return None
    return Reduction(node, node.name, values, output, whole.dtype, None, len(dims), whole, extent)


def _layout(value):
    return value.sizes, value.dtype, value.sharding or 0


def _is_cut(value, first):
    """Whether workers share out one of a value's dims from `first` on."""
    placements = packed_of(value.sharding)[1] if value.sharding else []
    return any(word & 0xFF == SHARD and word >> 16 >= first for word in placements)


class RowGroup(Group):
    """Parts around reductions of the same rows.

    whole: a value that has all their elements. dims: how many last dims make a row, None as long
    as there is no reduction.
    """

    def __init__(self, part):
        self.whole = part.whole if isinstance(part, Reduction) else part.output
        self.dims = None
        self.extents = {}  # of what it makes
        super().__init__(part)

    def add(self, part):
        super().add(part)
        if isinstance(part, Reduction):
            self.dims, extent = part.dims, part.extent
        else:
            extent = "whole" if part.output.sizes == self.whole.sizes else "column"
        self.extents[id(part.output)] = extent

    def take(self, other):
        super().take(other)
        self.dims = self.dims or other.dims
        self.extents |= other.extents

    def can_take(self, other):
        return (super().can_take(other) and _layout(self.whole)[::2] == _layout(other.whole)[::2]
                and (None in (self.dims, other.dims) or self.dims == other.dims)
                and other.can_have(self.dims) and self.can_have(other.dims))  # fmt: skip

    def can_have(self, dims):
        """Whether what it reads can be told by rows of so many dims."""
        return dims is None or all(
            self.extent_of(value, dims) for value in self.read.values()
            if id(value) not in self.made
        )  # fmt: skip

    def accepts(self, part):
        if len(self.parts) >= MOST_NODES or not have_one_dtype(self, part):
            return False
        dims = self.dims
        if isinstance(part, Reduction):
            if dims not in (None, part.dims) or not self.can_have(part.dims):
                return False
            dims = part.dims
            expected = {"whole"}
            if _layout(part.whole)[::2] != _layout(self.whole)[::2]:
                return False
        elif (part.output.sharding or 0) != (self.whole.sharding or 0):
            return False
        elif part.output.sizes == self.whole.sizes:
            expected = {"whole", "row", "column", "one"}
        elif dims is not None and part.output.sizes == self._kept(dims):
            expected = {"column", "one"}
        else:
            return False
        values = [value for value in part.arguments if isinstance(value, Value)]
        return all(
            self.extents.get(id(value)) in (None, *expected)
            and (dims is None or self.extent_of(value, dims) in expected) for value in values
        )  # fmt: skip

    def _kept(self, dims):
        return self.whole.sizes[:-dims] + (1,) * dims

    def extent_of(self, value, dims=None):
        if id(value) in self.extents:
            return self.extents[id(value)]
        dims = dims or self.dims
        extent = pointwise_groups.extent_of(value, self.whole)
        if extent != "spread":
            return extent
        own = [size != 1 and stride != 0
               for size, stride in zip(value.sizes, value.strides, strict=True)]  # fmt: skip
        if not any(own[-dims:]):
            # As many rows: else they would have to be repeated.
            return "column" if value.sizes[:-dims] == self.whole.sizes[:-dims] and all(
                is_own or size == 1 for is_own, size in zip(own, value.sizes[:-dims], strict=False)
            ) else None  # fmt: skip
        return "row" if not any(own[:-dims]) else None


def _begin(part):
    if not isinstance(part, Reduction) and math.prod(part.output.sizes) < LEAST_ELEMENTS:
        return None
    group = RowGroup(part)
    return group if math.prod(group.whole.sizes) >= LEAST_ELEMENTS else None


def find(graph):
    """Groups with a reduction in them that are worth a kernel."""
    return [
        group for group in pointwise_groups.find(graph, part_of, _begin)
        if group.dims is not None
        and any(group.extent_of(value) == "whole" for value in group.read.values()
                if id(value) not in group.made)
    ]  # fmt: skip


class FusedRows(Fused):
    """A group as a kernel that reduces rows, and the call of it."""

    def _describe(self):
        extents = [self.group.extent_of(value) for value in self.outputs]
        return super()._describe() | {"extents": extents}

    def _called(self):
        return "dtorch::fused_rows", self.group.dims
