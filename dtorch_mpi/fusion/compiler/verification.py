"""Compares a fused kernel with PyTorch's own operators, on the machine that is to run it."""

import ctypes
import math
from functools import partial

import torch
from expressions import FILL, evaluate

SIZES = ((1, 1, 1), (1, 5, 1), (1, 1, 17), (1, 31, 1), (1, 1, 47), (1021, 1, 1), (16, 4, 64),
         (3, 5, 7), (5, 2, 19), (2, 130, 33))  # fmt: skip
SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, 1e38, -1e38, 0.5, 1.0, -2.0)
NUMBERS = (0.3, -1.7, 1.0, 2.5, 0.9, -1.0, 0.1)


def _tensor(dtype, length, random):
    if dtype == torch.bool:
        return torch.rand(length, generator=random) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(-5, 6, (length,), generator=random, dtype=dtype)
    scales = torch.tensor([0.01, 1.0, 10.0, 100.0], dtype=dtype)
    made = torch.randn(length, generator=random, dtype=dtype)
    made *= scales[torch.randint(4, (length,), generator=random)]
    special = torch.tensor(SPECIAL, dtype=dtype)
    chosen = special[torch.randint(len(special), (length,), generator=random)]
    return torch.where(torch.rand(length, generator=random) < 0.15, chosen, made)


def called(name, arguments, sizes=()):
    """The operator itself, on Python numbers where its schema has them. sizes: of a tensor that is
    made of a number."""
    if name == FILL:
        number, dtype, *_ = arguments
        return torch.full(sizes, number, dtype=getattr(torch, dtype))
    packet, _, overload = name.removeprefix("aten::").partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    positional, named = [], {}
    for argument, value in zip(operator._schema.arguments, arguments, strict=True):
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    return operator(*positional, **named)


def _same(found, expected):
    if found.dtype != expected.dtype:
        return False
    if not found.dtype.is_floating_point:
        return torch.equal(found, expected)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[found.itemsize]
    equal = found.view(bits) == expected.view(bits)
    return bool((equal | (found.isnan() & expected.isnan())).all())


def _spread(sizes, place):
    """(sizes of a tensor that is broadcast to `sizes`, its Spread as src/worker/fused.h has it)."""
    a, b, c = sizes
    return (((c,), (1, c, 1, 1)), ((a, b, 1), (c, a * b, 1, 1)), ((a, 1, c), (1, c, b, a)),
            ((b, 1), (c, b, 1, 1)), ((a, 1, 1), (b * c, a, 1, 1)))[place % 5]  # fmt: skip


def _input(dtype, extent, sizes, place, random):
    """(a kernel's input for outputs of `sizes`, the same broadcast to them, how it is spread)."""
    own, spread = {"whole": (sizes, ()), "one": ((), ()), "spread": _spread(sizes, place)}[extent]
    made = _tensor(getattr(torch, dtype), math.prod(own), random).reshape(own)
    return made, made.expand(sizes) if extent == "spread" else made, spread


def _is_whole(spec, argument):
    kind, at = argument
    return kind == "node" or kind == "input" and spec["inputs"][at][1] == "whole"


def verify(spec, path):
    """Raise ValueError if the kernel in the library at `path` gives other bits than PyTorch."""
    function = ctypes.CDLL(str(path)).dtorch_fused
    random = torch.Generator().manual_seed(0)
    torch.set_num_threads(1)
    for case, sizes in enumerate(SIZES):
        made = [_input(dtype, extent, sizes, case + place, random)
                for place, (dtype, extent) in enumerate(spec["inputs"])]  # fmt: skip
        inputs, broadcast, spreads = ([entry[i] for entry in made] for i in range(3))
        numbers = []
        for place, dtype in enumerate(spec["numbers"]):
            number = NUMBERS[(3 * case + place) % len(NUMBERS)]
            numbers.append(int(10 * number) if dtype == "int64" else number)
        for name, given in spec["nodes"]:
            if name not in ("aten::add.Tensor", "aten::sub.Tensor"):
                continue
            if spec["computes_in"] == "bfloat16" or not _is_whole(spec, given[1]):
                numbers[given[2][1]] = 1  # see expressions.py
        expected = evaluate(spec, broadcast, numbers, partial(called, sizes=sizes))
        expected = [tensor.contiguous() for tensor in expected]
        writes = dict(spec["writes"])
        found = [inputs[writes[place]] if place in writes else torch.empty_like(tensor)
                 for place, tensor in enumerate(expected)]  # fmt: skip
        read = [torch.tensor(number, dtype=getattr(torch, dtype))
                for number, dtype in zip(numbers, spec["numbers"], strict=True)]  # fmt: skip
        shapes = [(ctypes.c_int64 * 4)(*spread) for spread in spreads if spread]
        pointers = [tensor.data_ptr() for tensor in (*inputs, *read, *found)]
        pointers += map(ctypes.addressof, shapes)
        function((ctypes.c_void_p * len(pointers))(*pointers), ctypes.c_int64(0),
                 ctypes.c_int64(math.prod(sizes)))  # fmt: skip
        if not all(map(_same, found, expected)):
            raise ValueError(f"a kernel gives other bits than PyTorch's operators: {spec}")
