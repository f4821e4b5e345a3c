"""Compares a fused kernel that reduces rows with PyTorch's own operators, but for rounding."""

import ctypes

import torch
from expressions import evaluate
from reductions import REDUCTIONS
from rows import sizes_of
from verification import NUMBERS, called

SIZES = ((1, 1), (3, 7), (5, 16), (2, 33), (70, 250), (9, 1024))  # rows, columns
# How much larger than that of PyTorch's own operators the error may be, against float64.
TIMES = 8


def _tensor(dtype, sizes, random, special):
    if dtype == torch.bool:
        return torch.rand(sizes, generator=random) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(-5, 6, sizes, generator=random, dtype=dtype)
    made = torch.randn(sizes, generator=random, dtype=dtype)
    if special:
        made[torch.rand(sizes, generator=random) < 0.05] = special
    return made


def _call(name, arguments):
    return REDUCTIONS[name][0](*arguments) if name in REDUCTIONS else called(name, arguments)


def _doubled(tensor):
    return tensor.double() if tensor.is_floating_point() else tensor


def _is_as_good(found, expected, exact):
    if not found.is_floating_point():
        return torch.equal(found, expected)
    finite = expected.isfinite()
    if not torch.equal(found[~finite].nan_to_num(nan=0.5), expected[~finite].nan_to_num(nan=0.5)):
        return False
    found, expected, exact = found[finite], expected[finite], exact[finite]
    if found.numel() == 0:
        return True
    floor = torch.finfo(found.dtype).eps * exact.abs().max()
    most = TIMES * (floor + (expected - exact).abs().max())
    return bool((found - exact).abs().max() <= most)


def verify(spec, path):
    """Raise ValueError if the kernel in the library at `path` gives other values than PyTorch."""
    function = ctypes.CDLL(str(path)).dtorch_fused_rows
    random = torch.Generator().manual_seed(0)
    torch.set_num_threads(1)
    for case, (rows, columns) in enumerate(SIZES):
        for special in (None, -float("inf"), float("nan")):
            inputs = [
                _tensor(getattr(torch, dtype), sizes_of(extent, rows, columns), random, special)
                for dtype, extent in spec["inputs"]
            ]
            numbers = [int(10 * NUMBERS[(case + place) % 7]) if dtype == "int64"
                       else NUMBERS[(case + place) % 7]
                       for place, dtype in enumerate(spec["numbers"])]  # fmt: skip
            expected = [tensor.contiguous() for tensor in evaluate(spec, inputs, numbers, _call)]
            found = [torch.empty_like(tensor) for tensor in expected]
            read = [torch.tensor(number, dtype=getattr(torch, dtype))
                    for number, dtype in zip(numbers, spec["numbers"], strict=True)]  # fmt: skip
            pointers = [tensor.data_ptr() for tensor in (*inputs, *read, *found)]
            function((ctypes.c_void_p * len(pointers))(*pointers), ctypes.c_int64(0),
                     ctypes.c_int64(rows), ctypes.c_int64(columns))  # fmt: skip
            exact = evaluate(spec, list(map(_doubled, inputs)), numbers, _call)
            if not all(map(_is_as_good, found, expected, exact)):
                raise ValueError(f"a kernel gives other values than PyTorch's: {spec}")
