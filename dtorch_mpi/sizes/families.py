"""Capture's question, answered: what are a call's output sizes for other sizes of its arguments?

Asked once a family of calls has been seen with two sizes; see src/capture/call_family.h.
"""

from collections.abc import Sequence

import torch
from torch.utils._pytree import tree_leaves

Codes = list[list[int]]


class _MismatchError(Exception):
    """The arguments and what the family knows of them don't agree."""


def sizes(
    name: str, overload: str, arguments: list, is_size: Sequence[bool],
    left_out: tuple[int, int], values: list[int], before: list[int], varies: list[bool],
) -> tuple[Codes, list[tuple[Codes, Codes, list[int]]]] | None:
    """(conditions, (sizes, strides, offset) of each output tensor) as programs over `values`.

    None where there are none: the family's calls are then worked out size by size.

    arguments: in the schema's order, each distributed tensor as (meta tensor, sharding number).
    left_out: the arguments that say where a part lies; `values` begins with the part's extent.
    values, before: the sizes of this call and of an earlier one. varies: which are left open.
    """
    try:
        return _sizes(name, overload, arguments, is_size, left_out, values, before, varies)
    except Exception:
        # Nothing is lost but time: what can't be said for all sizes is known for this one.
        return None


def _sizes(name, overload, arguments, is_size, left_out, values, before, varies):
    from dtorch_mpi.sizes.programs import compile_program
    from dtorch_mpi.sizes.symbolic import SymbolicCall, expression

    namespace, _, base = name.partition("::")
    op = getattr(getattr(getattr(torch.ops, namespace), base), overload)
    call = SymbolicCall()
    with call.running():
        open_arguments = _OpenArguments(call, values, before, varies)
        opened = open_arguments.replace(arguments, is_size, left_out)
        tensors = [_without_sharding(value) for value in opened]
        count = sum(not argument.kwarg_only for argument in op._schema.arguments)
        names = [argument.name for argument in op._schema.arguments[count:]]
        made = op(*tensors[:count], **dict(zip(names, tensors[count:], strict=True)))
        outputs = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        if any(isinstance(leaf, torch.SymInt) for leaf in tree_leaves(made)):
            return None  # a number that is returned is kept as it is
        if not _is_decided_alike(op, arguments, opened, left_out, values, outputs, count, names):
            return None
    conditions = call.conditions()
    if conditions is None:
        return None
    inputs = call.inputs()

    def programs(numbers):
        return [compile_program(expression(number), inputs) for number in numbers]

    return (
        [compile_program(formula, inputs)
         for formula in (*conditions, *open_arguments.conditions())],
        [(programs(output.shape), programs(output.stride()), programs([output.storage_offset()])[0])
         for output in outputs],
    )


class _OpenArguments:
    """The arguments of a call with symbols for the sizes that vary."""

    def __init__(self, call, values, before, varies):
        self._call = call
        self._values, self._before, self._varies = values, before, varies
        self._next = 0
        self._derived = []  # (index, formula) of strides that follow from sizes

    def conditions(self) -> list:
        import sympy

        from dtorch_mpi.sizes.symbolic import expression

        own = {index: symbol for symbol, index in self._call.inputs().items()}
        equal = []
        for index, formula in self._derived:
            symbol = sympy.Symbol(f"value{index}", integer=True)
            own[index] = symbol
            self._call.inputs()[symbol] = index
            equal.append(sympy.Eq(symbol, expression(formula), evaluate=False))
        return equal

    def replace(self, arguments, is_size, left_out) -> list:
        first, last = left_out
        extent = self._number(self._next_index()) if last else None
        opened = []
        for position, value in enumerate(arguments):
            if first <= position < last:
                # Where the part lies, and its end: that of a part that lies first.
                opened.append(0 if position == first else extent)
            else:
                opened.append(self._open(value, is_size[position]))
        if self._next != len(self._values):
            raise _MismatchError
        return opened

    def _open(self, value, is_size):
        if isinstance(value, tuple) and isinstance(value[0], torch.Tensor):
            return self._tensor(value[0]), value[1]
        if isinstance(value, list) and any(isinstance(v, tuple) for v in value):
            return [self._open(v, False) for v in value]
        if is_size and type(value) is int:
            return self._given(value)
        if is_size and isinstance(value, list):
            return [self._given(v) for v in value]
        if isinstance(value, torch.device):
            return torch.device("meta")
        return value

    def _next_index(self):
        self._next += 1
        return self._next - 1

    def _given(self, value):
        index = self._next_index()
        if self._values[index] != value:
            raise _MismatchError
        return self._number(index)

    def _number(self, index):
        value = self._values[index]
        return self._call.symbol(value, index) if self._varies[index] else value

    def _tensor(self, meta):
        shape = [self._given(size) for size in meta.shape]
        indices = [self._next_index() for _ in meta.stride()]
        if [self._values[i] for i in indices] != list(meta.stride()):
            raise _MismatchError
        strides = self._strides(shape, indices)
        return torch.empty_strided(shape, strides, dtype=meta.dtype, device="meta")

    def _strides(self, shape, indices) -> list:
        """Each stride that varies, as the extent of a dim within it where that is what it is."""
        count = len(shape)
        size_indices = range(indices[0] - count, indices[0]) if indices else ()
        strides = [None] * count
        for dim in sorted(range(count), key=lambda d: self._values[indices[d]]):
            index = indices[dim]
            if not self._varies[index]:
                strides[dim] = self._values[index]
                continue
            for inner in range(count):
                known = strides[inner]
                if known is not None and all(
                    v[indices[inner]] * v[size_indices[inner]] == v[index]
                    for v in (self._values, self._before)
                ):
                    strides[dim] = known * shape[inner]
                    self._derived.append((index, strides[dim]))
                    break
            else:
                strides[dim] = self._call.symbol(self._values[index], index)
        return strides


def _without_sharding(value):
    if isinstance(value, list):
        return [_without_sharding(v) for v in value]
    return value[0] if isinstance(value, tuple) else value


def _is_decided_alike(op, arguments, opened, left_out, values, outputs, count, names) -> bool:
    """Have the call's sharding decision hold for the open sizes too: by conditions on them."""
    if not any(number for _, number in _distributed(arguments)):
        return True
    from dtorch_mpi.sharding.hook import with_metas
    from dtorch_mpi.sharding.propagator import assume_same_decision

    first, last = left_out
    closed = list(arguments)
    if last:
        closed[first : last] = [0, values[0]][: last - first]
    mesh, as_seen = with_metas(op._schema.name, closed)
    _, as_open = with_metas(op._schema.name, opened)
    return assume_same_decision(
        op, *((tuple(args[:count]), dict(zip(names, args[count:], strict=True)))
              for args in (as_seen, as_open)), outputs, mesh,
    )


def _distributed(arguments):
    for value in arguments:
        for element in value if isinstance(value, list) else [value]:
            if isinstance(element, tuple):
                yield element
