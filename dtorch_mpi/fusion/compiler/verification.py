"""Compares a fused kernel with PyTorch's own operators, on the machine that is to run it."""

import ctypes

import torch
from expressions import evaluate

LENGTHS = (1, 5, 17, 31, 47, 1021, 4096)
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


def called(name, arguments):
    """The operator itself, on Python numbers where its schema has them."""
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
    bits = torch.int32 if found.dtype == torch.float32 else torch.int64
    equal = found.view(bits) == expected.view(bits)
    return bool((equal | (found.isnan() & expected.isnan())).all())


def verify(spec, path):
    """Raise ValueError if the kernel in the library at `path` gives other bits than PyTorch."""
    function = ctypes.CDLL(str(path)).dtorch_fused
    random = torch.Generator().manual_seed(0)
    torch.set_num_threads(1)
    for case, length in enumerate(LENGTHS):
        inputs = [_tensor(getattr(torch, dtype), length if long else 1, random).reshape(
                  (length,) if long else ()) for dtype, long in spec["inputs"]]  # fmt: skip
        numbers = []
        for place, dtype in enumerate(spec["numbers"]):
            number = NUMBERS[(3 * case + place) % len(NUMBERS)]
            numbers.append(int(10 * number) if dtype == "int64" else number)
        for name, arguments in spec["nodes"]:
            if name in ("aten::add.Tensor", "aten::sub.Tensor") and arguments[1][0] == "number":
                numbers[arguments[2][1]] = 1  # see expressions.py
        expected = evaluate(spec, inputs, numbers, called)
        writes = dict(spec["writes"])
        found = [inputs[writes[place]] if place in writes else torch.empty_like(tensor)
                 for place, tensor in enumerate(expected)]  # fmt: skip
        read = [torch.tensor(number, dtype=getattr(torch, dtype))
                for number, dtype in zip(numbers, spec["numbers"], strict=True)]  # fmt: skip
        pointers = [tensor.data_ptr() for tensor in (*inputs, *read, *found)]
        function((ctypes.c_void_p * len(pointers))(*pointers), ctypes.c_int64(0),
                 ctypes.c_int64(length))  # fmt: skip
        if not all(map(_same, found, expected)):
            raise ValueError(f"a kernel gives other bits than PyTorch's operators: {spec}")
