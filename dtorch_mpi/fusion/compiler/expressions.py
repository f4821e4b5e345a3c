"""What fused kernels are made of: each operator as inductor is to compile it.

A table of formulas rather than the operators' own names, because numbers are inputs here (0-dim
tensors of the dtype that the operator computes in) where PyTorch's operators take Python numbers,
and since each formula rounds as ATen's own CPU kernel does, so that a fused kernel gives the same
bits. What ATen leaves to MKL on a CPU (exp, log, tanh, sqrt, ...) is left to it here too: see
stages.py. gelu is missing, since it goes to oneDNN.

No import of dtorch_mpi: the compile process runs this without it.
"""

from dataclasses import dataclass

import torch

aten = torch.ops.aten

FLOATS = (torch.float32, torch.float64)
NUMBERS = (*FLOATS, torch.int64)
ALL = (*NUMBERS, torch.bool)


@dataclass(frozen=True)
class Expression:
    """formula: of an operator's arguments in the order of its schema, None for those left out.

    one_by_one: the same for the elements that ATen's loops leave over, where it rounds otherwise
    there. dtypes: of its arguments, all of one; numbers become of it too. masks: arguments that
    are masks (bool) in any case. result: dtype of the result, None for the arguments' own.
    broadcasts: whether ATen gives the same bits where arguments are broadcast. narrow: whether
    it does so of bfloat16, where it is known of float32.
    """

    formula: object
    one_by_one: object = None
    dtypes: tuple = FLOATS
    masks: tuple = ()
    result: torch.dtype | None = None
    broadcasts: bool = True
    narrow: bool = True

    def allows(self, dtype):
        if dtype == torch.bfloat16:
            return self.narrow and torch.float32 in self.dtypes
        return dtype in self.dtypes


def multiply_add(a, b, c):
    """a * b + c; of floats, with one rounding."""
    if not c.dtype.is_floating_point:
        return a * b + c
    return torch.ops.dtorch_fusion.multiply_add(a, b, c)


def _clamp(x, low, high):
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _lerp(x, y, weight):
    near = torch.abs(weight) < 0.5
    return multiply_add(y - x, torch.where(near, weight, weight - 1), torch.where(near, x, y))


def _lerp_one_by_one(x, y, weight):
    near = torch.abs(weight) < 0.5
    return torch.where(
        near, multiply_add(weight, y - x, x), multiply_add(-(y - x), 1 - weight, y)
    )


def _silu_backward(g, x):
    y = torch.sigmoid(x)
    return g * y * multiply_add(x, 1 - y, torch.ones_like(x))


EXPRESSIONS = {
    # Where y has an element for several of x's, and k isn't 1, ATen may round the elements left
    # over otherwise.
    "aten::add.Tensor": Expression(lambda x, y, k: multiply_add(y, k, x), dtypes=NUMBERS),
    "aten::sub.Tensor": Expression(lambda x, y, k: multiply_add(y, -k, x), dtypes=NUMBERS),
    "aten::rsub.Scalar": Expression(lambda x, y, k: multiply_add(x, -k, y), dtypes=NUMBERS,
                                    narrow=False),
    "aten::mul.Tensor": Expression(lambda x, y: x * y, dtypes=NUMBERS),
    "aten::div.Tensor": Expression(lambda x, y: x / y),
    "aten::addcmul": Expression(lambda x, a, b, k: multiply_add(k * a, b, x)),
    "aten::addcdiv": Expression(lambda x, a, b, k: x + k * a / b),
    "aten::lerp.Scalar": Expression(_lerp, one_by_one=_lerp_one_by_one),
    "aten::neg": Expression(torch.neg, dtypes=NUMBERS),
    "aten::abs": Expression(torch.abs, dtypes=NUMBERS),
    "aten::sign": Expression(torch.sign, dtypes=NUMBERS),
    "aten::sgn": Expression(torch.sgn),
    "aten::square": Expression(lambda x: x * x, dtypes=NUMBERS),
    "aten::reciprocal": Expression(torch.reciprocal),
    "aten::rsqrt": Expression(torch.rsqrt, narrow=False),
    "aten::exp": Expression(torch.exp),
    "aten::log": Expression(torch.log),
    "aten::log2": Expression(torch.log2),
    "aten::log10": Expression(torch.log10),
    "aten::sqrt": Expression(torch.sqrt),
    "aten::sin": Expression(torch.sin),
    "aten::cos": Expression(torch.cos),
    "aten::tan": Expression(torch.tan),
    "aten::asin": Expression(torch.asin),
    "aten::acos": Expression(torch.acos),
    "aten::atan": Expression(torch.atan),
    "aten::tanh": Expression(torch.tanh),
    "aten::erf": Expression(torch.erf, narrow=False),
    "aten::erfc": Expression(torch.erfc),
    "aten::exp2": Expression(torch.exp2),
    "aten::ceil": Expression(torch.ceil),
    "aten::floor": Expression(torch.floor),
    "aten::round": Expression(torch.round),
    "aten::trunc": Expression(torch.trunc),
    "aten::relu": Expression(torch.relu, dtypes=NUMBERS),
    "aten::sigmoid": Expression(torch.sigmoid),
    "aten::silu": Expression(aten.silu),
    "aten::leaky_relu": Expression(lambda x, k: torch.where(x > 0, x, x * k)),
    "aten::hardtanh": Expression(_clamp),
    # Which of two zeros, and how the rest of each row is rounded: both by the loop that is taken.
    "aten::maximum": Expression(torch.maximum, dtypes=NUMBERS, broadcasts=False),
    "aten::minimum": Expression(torch.minimum, dtypes=NUMBERS, broadcasts=False),
    "aten::clamp": Expression(_clamp, dtypes=NUMBERS),
    "aten::clamp_min": Expression(torch.maximum, dtypes=NUMBERS),
    "aten::clamp_max": Expression(torch.minimum, dtypes=NUMBERS),
    "aten::sigmoid_backward": Expression(lambda g, y: g * (1 - y) * y),
    "aten::tanh_backward": Expression(
        lambda g, y: g * multiply_add(-y, y, torch.ones_like(y))
    ),
    "aten::silu_backward": Expression(_silu_backward, broadcasts=False),
    "aten::threshold_backward": Expression(
        lambda g, x, t: torch.where(x <= t, torch.zeros_like(g), g)
    ),
    "aten::where.self": Expression(torch.where, dtypes=NUMBERS, masks=(0,)),
    "aten::masked_fill.Scalar": Expression(
        lambda x, mask, value: torch.where(mask, value, x), dtypes=NUMBERS, masks=(1,)
    ),
    "aten::logical_not": Expression(torch.logical_not, dtypes=ALL, result=torch.bool),
    "aten::logical_and": Expression(torch.logical_and, dtypes=ALL, result=torch.bool),
    "aten::logical_or": Expression(torch.logical_or, dtypes=ALL, result=torch.bool),
    "aten::bitwise_not": Expression(torch.bitwise_not, dtypes=(torch.int64, torch.bool)),
    "aten::bitwise_and.Tensor": Expression(torch.bitwise_and, dtypes=(torch.int64, torch.bool)),
    "aten::bitwise_or.Tensor": Expression(torch.bitwise_or, dtypes=(torch.int64, torch.bool)),
}
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    for _overload in ("Scalar", "Tensor"):
        EXPRESSIONS[f"aten::{_name}.{_overload}"] = Expression(
            # Of bfloat16 ATen rounds the number first.
            getattr(torch, _name), dtypes=NUMBERS, result=torch.bool, narrow=_overload == "Tensor"
        )


def _narrow(x):
    return torch.ops.dtorch_fusion.narrow(x)


def _narrow_add(x, y, k):
    return multiply_add(_narrow(y), _narrow(k), x)


def _narrow_add_one_by_one(x, y, k):
    return x + _narrow(_narrow(y) * _narrow(k))


# Of bfloat16, where ATen rounds more than the result: in vectors, and one by one (where k isn't 1,
# some of these as in vectors).
NARROW = {
    "aten::add.Tensor": (_narrow_add, _narrow_add_one_by_one),
    "aten::sub.Tensor": (lambda x, y, k: _narrow_add(x, y, -k),
                         lambda x, y, k: _narrow_add_one_by_one(x, y, -k)),
}  # fmt: skip


def worked_out(name, arguments, one_by_one):
    """What an operator gives; of bfloat16 it is worked out in float32, as ATen does."""
    expression = EXPRESSIONS[name]
    formula = (one_by_one and expression.one_by_one) or expression.formula
    is_narrow = [isinstance(a, torch.Tensor) and a.dtype == torch.bfloat16 for a in arguments]
    if not any(is_narrow):
        return formula(*arguments)
    if name in NARROW:
        formula = NARROW[name][one_by_one]
    made = formula(*(a.float() if narrow else a
                     for a, narrow in zip(arguments, is_narrow, strict=True)))  # fmt: skip
    # By an operator of its own: inductor leaves out conversions that the next one undoes.
    return _narrow(made).to(torch.bfloat16) if made.dtype == torch.float32 else made


# Makes a tensor of one number, of its arguments' dtype; the size is the kernel's own.
FILL = "aten::full"


def evaluate(spec, inputs, numbers, call):
    """The outputs of a fused kernel, by its description (see dtorch_mpi/fusion/spec.py).

    call: what to do for an operator, `call(name, arguments)`.
    """
    made = []
    sources = {"input": inputs, "number": numbers, "node": made}

    def of(argument):
        return sources[argument[0]][argument[1]] if isinstance(argument, list) else argument

    for name, arguments in spec["nodes"]:
        made.append(call(name, list(map(of, arguments))))
    return [made[node] for node in spec["outputs"]]
