"""What passes ask of operators."""

import torch

from .. import _core, _sharding
from ..mesh import mesh_number, packed_of, sharding_of

# The same tensor again, to everybody but autograd.
ALIASES = {"aten::detach", "aten::alias"}
# Make their output from nothing but numbers.
_MAKERS = {"aten::empty", "aten::zeros", "aten::ones", "aten::full", "aten::arange", "aten::eye",
           "aten::empty_like", "aten::zeros_like", "aten::ones_like", "aten::full_like",
           "aten::new_empty", "aten::new_zeros", "aten::new_ones", "aten::new_full",
           "aten::empty_strided", "aten::new_empty_strided", "aten::scalar_tensor"}  # fmt: skip
# Fail for no data, once their arguments' metadata was found good.
_SAFE = {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::sum", "aten::mean",
         "aten::amax", "aten::amin", "aten::cat", "aten::stack", "aten::clone", "aten::_to_copy",
         "aten::_softmax", "aten::_log_softmax", "aten::native_layer_norm", "aten::cumsum",
         "aten::_unsafe_view", "aten::_reshape_alias", *ALIASES}  # fmt: skip
# Integers by a zero; values out of range.
_JUDGES_VALUES = {"aten::div", "aten::remainder", "aten::floor_divide", "aten::fmod", "aten::pow",
                  "aten::bitwise_left_shift", "aten::bitwise_right_shift"}  # fmt: skip

SHARD, PARTIAL = 1, 2  # the low byte of a packed placement; 0: replicated


def keeps_sums():
    """Whether each sum must stay in the order that PyTorch's operators add it up in.

    A training that goes on from a checkpoint runs what is not rewritten yet, to the same bits then.
    """
    return torch.are_deterministic_algorithms_enabled()


def packet(node):
    return node.name.partition(".")[0]


def is_view(node):
    return any(value.base is not value for value in node.outputs)


def is_random(node):
    operator = node.overload()
    return operator is not None and torch.Tag.nondeterministic_seeded in operator.tags


def is_pure(node):
    """Whether a node only makes its outputs, and from its inputs alone.

    Of a user's operator nobody knows: a Python kernel may count its calls.
    """
    if node.kind == "redistribute":
        return not node.written
    return (node.kind == "operator" and node.overload() is not None and not node.written
            and not is_random(node) and bool(node.outputs)
            and not _core.is_users_operator(packet(node)))


def can_fail(node):
    """Whether the data could make it fail: nobody would learn of it if it did not run."""
    if node.kind == "redistribute":
        return False
    name = packet(node)
    if name in _MAKERS or name in _SAFE or is_view(node):
        return False
    operator = node.overload()
    pointwise = operator is not None and torch.Tag.pointwise in operator.tags
    return not pointwise or name in _JUDGES_VALUES


def shardings(node):
    """(before, after) of a redistribution, by number; 0 is whole on every worker."""
    return tuple(node.words[-2:])


def is_collective(node):
    """Whether a node redistributes within one mesh, and makes its output."""
    if node.kind != "redistribute" or node.written:
        return False
    (before, _), (after, _) = map(sharding_of, shardings(node))
    return before is None or mesh_number(before) == mesh_number(after)


def steps(before, after):
    """[(axis, from, to)] of a redistribution between two shardings, as packed placements."""
    to = packed_of(after)[1]
    return _sharding.plan_redistribute(packed_of(before)[1] if before else [0] * len(to), to)


def communicates(steps):
    """Whether workers need each other for it: all but taking one's own part of a whole."""
    return any(before & 0xFF for _, before, _ in steps)


def is_gather(node):
    """Whether a node makes each worker hold more than it did."""
    return is_collective(node) and any(
        before & 0xFF == SHARD and after == 0 for _, before, after in steps(*shardings(node))
    )


class Versions:
    """Counts the writes to each value's memory, as a pass goes through a window."""

    def __init__(self):
        self._writes = {}
        self._outside = 0

    def of(self, value):
        base = value.base
        # Any two values from before the window may share their memory.
        return (self._writes.get(id(base), 0), self._outside if base.made_by is None else 0)

    def note(self, node):
        for value in node.written:
            self._writes[id(value.base)] = self._writes.get(id(value.base), 0) + 1
            self._outside += value.base.made_by is None


def written_bases(graph):
    return {id(value.base) for node in graph.nodes for value in node.written}
