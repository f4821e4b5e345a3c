"""Each operator of a fused kernel as it is written in Triton, by Triton's interpreter, against
PyTorch's."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import dtorch_mpi

COMPILER = Path(dtorch_mpi.__file__).parent / "fusion" / "compiler"
sys.path.insert(0, str(COMPILER))

from expressions import EXPRESSIONS, evaluate  # noqa: E402
from reductions import REDUCTIONS  # noqa: E402
from triton_source import written  # noqa: E402
from verification import NUMBERS, SPECIAL, called  # noqa: E402

sys.path.remove(str(COMPILER))

pytestmark = pytest.mark.skipif("SIMULATED_GPUS" not in os.environ,
                                reason="simulated GPUs bring the interpreter")
DTYPES = {"float32": 1e-6, "float64": 1e-14, "bfloat16": 1e-2, "int64": 0, "bool": 0}
# A sum of products may be small beside these, which the CPU's kernel rounds otherwise.
SUMS = {"aten::add.Tensor", "aten::sub.Tensor", "aten::rsub.Scalar", "aten::addcmul",
        "aten::addcdiv", "aten::lerp.Scalar", "aten::tanh_backward",
        "aten::silu_backward"}  # fmt: skip
ELEMENTS = 1500


def schema_of(name):
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")._schema


def spec_of(name, dtype):
    """The description of a kernel that is this operator on whole tensors; None where it has none.
    """
    expression = EXPRESSIONS[name]
    if not expression.allows(getattr(torch, dtype)):
        return None
    inputs, numbers, arguments = [], [], []
    for place, argument in enumerate(schema_of(name).arguments):
        if str(argument.type) == "Tensor":
            arguments.append(["input", len(inputs)])
            inputs.append(["bool" if place in expression.masks else dtype, "whole"])
        else:
            arguments.append(["number", len(numbers)])
            numbers.append("float32" if dtype == "bfloat16" else dtype)
    result = str(expression.result or dtype).removeprefix("torch.")
    made = {"inputs": inputs, "numbers": numbers, "nodes": [[name, arguments]], "outputs": [0],
            "computes_in": dtype, "dtypes": [result], "writes": []}  # fmt: skip
    return None if "bool" in numbers else made


def values(dtype, sizes, random):
    if dtype == torch.bool:
        return torch.rand(sizes, generator=random) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(-5, 6, sizes, generator=random, dtype=dtype)
    made = torch.randn(sizes, generator=random, dtype=dtype) * 3
    special = torch.tensor(SPECIAL, dtype=dtype)
    special = special[torch.randint(len(special), sizes, generator=random)]
    return torch.where(torch.rand(sizes, generator=random) < 0.1, special, made)


def bits(number, dtype):
    kind, size = {"int64": (np.int64, np.int64), "float64": (np.float64, np.int64),
                  "float32": (np.float32, np.int32)}[dtype]  # fmt: skip
    return int(np.array([number], kind).view(size)[0])


def run(spec, inputs, numbers, counts, sizes, variant, blocks):
    """The outputs of a kernel as its program in Triton makes them."""
    from simulated_gpu import triton_programs

    source = written(spec)
    variant = source.variants[variant]
    told = {"name": "dtorch_fused", "rows": variant.rows, "columns": variant.columns,
            "threads": 32 * variant.num_warps, "signature": source.signature}  # fmt: skip
    outputs = [torch.zeros(size, dtype=getattr(torch, dtype))
               for size, dtype in zip(sizes, spec["dtypes"], strict=True)]  # fmt: skip
    triton_programs.run(
        f"# {json.dumps(told)}\n{source.text}", "dtorch_fused",
        [x.view(-1).view(torch.uint8) for x in inputs],
        [x.view(-1).view(torch.uint8) for x in outputs],
        [*(bits(n, dtype) for n, dtype in zip(numbers, spec["numbers"], strict=True)), *counts],
        blocks,
    )  # fmt: skip
    return outputs


@pytest.mark.parametrize(("name", "dtype"), [
    (name, dtype) for name in EXPRESSIONS for dtype in DTYPES if spec_of(name, dtype)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, about infinities
def test_an_operator(name, dtype):
    spec = spec_of(name, dtype)
    random = torch.Generator().manual_seed(0)
    inputs = [values(getattr(torch, kind), (ELEMENTS,), random) for kind, _ in spec["inputs"]]
    numbers = [NUMBERS[place] for place in range(len(spec["numbers"]))]
    if dtype == "int64":
        numbers = [int(10 * number) for number in numbers]
    if name == "aten::addcdiv":  # the CPU's kernel multiplies first, which may be too much
        inputs[1:] = inputs[1].clamp(-1e30, 1e30), inputs[2].abs() + 0.01
    if dtype == "bfloat16" and name in ("aten::add.Tensor", "aten::sub.Tensor"):
        numbers = [1.0]  # which the CPU's kernel rounds first
    (expected,) = evaluate(spec, inputs, numbers, partial(called, sizes=(ELEMENTS,)))
    (found,) = run(spec, inputs, numbers, [ELEMENTS], [(ELEMENTS,)], 0, 2)
    found, expected = found.double(), expected.double()
    wrong = ~torch.isclose(found, expected, rtol=DTYPES[dtype], atol=0, equal_nan=True)
    if name in SUMS:
        most = sum((x.double().abs() for x in inputs), torch.ones(ELEMENTS))
        wrong &= (found - expected).abs() > most**2 * DTYPES[dtype]
    assert not wrong.any(), [x[wrong][:4] for x in (*inputs, found, expected)]


@pytest.mark.parametrize("variant", range(4))
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_reduction(name, variant):
    rows, columns = [(37, 70), (5, 1000), (3, 2500), (2, 9000)][variant]
    formula, is_reduced = REDUCTIONS[name]
    count = 2 if "backward" in name else 1
    spec = {"inputs": [["float32", "whole"]] * count, "numbers": [],
            "nodes": [[name, [["input", at] for at in range(count)]]], "outputs": [0],
            "computes_in": "float32", "dtypes": ["float32"], "writes": [],
            "extents": ["reduced" if is_reduced else "whole"]}  # fmt: skip
    random = torch.Generator().manual_seed(variant)
    inputs = [torch.randn(rows, columns, generator=random) for _ in range(count)]
    inputs[0][1, 3] = float("nan") if variant % 2 else -float("inf")
    expected = formula(*inputs)
    blocks = -(-rows // written(spec).variants[variant].rows)
    (found,) = run(spec, inputs, [], [rows, columns], [expected.shape], variant, blocks)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
