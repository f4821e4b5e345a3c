"""Operators as Triton computes them, for fused kernels on GPUs.

Each rounds as ATen's CUDA kernel does: with one rounding where nvcc makes a multiplication and an
addition one instruction, by libdevice's functions where that calls CUDA's, and divisions as IEEE
has them, which Triton's own `/` does not. Of bfloat16 all is computed in float32, and each
operator's result is rounded.
"""

FLOATS = ("float32", "float64")


def _add(dtype, x, y, k):
    return f"libdevice.fma({y}, {k}, {x})" if dtype in FLOATS else f"{x} + {y} * {k}"


def _negated(x):
    return f"(-1.0 * {x})"  # Triton's -x is 0 - x, another one of two zeros


def _sub(dtype, x, y, k):
    return f"libdevice.fma({y}, {_negated(k)}, {x})" if dtype in FLOATS else f"{x} - {y} * {k}"


def _div(dtype, x, y):
    # ATen's multiplies by a number's reciprocal.
    return f"{x} * libdevice.rcp_rn({y})" if y.startswith("n") else _quotient(x, y)


def _quotient(x, y):
    return f"libdevice.div_rn({x}, {y})"


def _maximum(x, y):
    return f"tl.maximum({x}, {y}, propagate_nan=tl.PropagateNan.ALL)"


def _minimum(x, y):
    return f"tl.minimum({x}, {y}, propagate_nan=tl.PropagateNan.ALL)"


def _clamp(dtype, x, low, high):
    x = x if low is None else _maximum(x, low)
    return x if high is None else _minimum(x, high)


def _lerp(dtype, x, y, k):
    return (f"tl.where(tl.abs({k}) < 0.5, libdevice.fma({k}, {y} - {x}, {x}), "
            f"libdevice.fma({x} - {y}, 1.0 - {k}, {y}))")  # fmt: skip


def _one(like):
    return f"tl.full((), 1.0, {like}.dtype)"  # libdevice's functions take one dtype


def _sigmoid(x):
    return f"libdevice.rcp_rn(1.0 + libdevice.exp(-{x}))"


def _tanh_backward(dtype, g, y):
    return f"{g} * libdevice.fma({_negated(y)}, {y}, {_one(y)})"


def _silu_backward(dtype, g, x):
    return f"{g} * {_sigmoid(x)} * libdevice.fma({x}, 1.0 - {_sigmoid(x)}, {_one(x)})"


def _sign(dtype, x):
    return f"({x} > 0).to({x}.dtype) - ({x} < 0).to({x}.dtype)"


def _function(name):
    return lambda dtype, x: f"libdevice.{name}({x})"


def _infix(symbol):
    return lambda dtype, x, y: f"{x} {symbol} {y}"


def _is_set(x):
    return f"({x} != 0)"


# operator -> what writes it: of the dtype that it computes in, and its arguments' names.
EXPRESSIONS = {
    "aten::add.Tensor": _add,
    "aten::sub.Tensor": _sub,
    "aten::rsub.Scalar": lambda dtype, x, y, k: _sub(dtype, y, x, k),
    "aten::mul.Tensor": _infix("*"),
    "aten::div.Tensor": _div,
    "aten::addcmul": lambda dtype, x, a, b, k: f"libdevice.fma({k} * {a}, {b}, {x})",
    "aten::addcdiv": lambda dtype, x, a, b, k: f"libdevice.fma({k}, {_quotient(a, b)}, {x})",
    "aten::lerp.Scalar": _lerp,
    "aten::neg": lambda dtype, x: _negated(x) if dtype in FLOATS else f"-{x}",
    "aten::abs": lambda dtype, x: f"tl.abs({x})",
    "aten::sign": _sign,
    "aten::sgn": _sign,
    "aten::square": lambda dtype, x: f"{x} * {x}",
    "aten::reciprocal": lambda dtype, x: f"libdevice.rcp_rn({x})",
    "aten::sqrt": _function("sqrt_rn"),
    "aten::round": _function("nearbyint"),
    "aten::relu": lambda dtype, x: _maximum(x, f"tl.zeros_like({x})"),
    "aten::sigmoid": lambda dtype, x: _sigmoid(x),
    "aten::silu": lambda dtype, x: _quotient(x, f"1.0 + libdevice.exp(-{x})"),
    "aten::leaky_relu": lambda dtype, x, k: f"tl.where({x} > 0, {x}, {x} * {k})",
    "aten::hardtanh": _clamp,
    "aten::maximum": lambda dtype, x, y: _maximum(x, y),
    "aten::minimum": lambda dtype, x, y: _minimum(x, y),
    "aten::clamp": _clamp,
    "aten::clamp_min": lambda dtype, x, y: _maximum(x, y),
    "aten::clamp_max": lambda dtype, x, y: _minimum(x, y),
    "aten::sigmoid_backward": lambda dtype, g, y: f"{g} * (1.0 - {y}) * {y}",
    "aten::tanh_backward": _tanh_backward,
    "aten::silu_backward": _silu_backward,
    "aten::threshold_backward": lambda dtype, g, x, t: f"tl.where({x} <= {t}, 0.0, {g})",
    "aten::where.self": lambda dtype, mask, x, y: f"tl.where({mask}, {x}, {y})",
    "aten::masked_fill.Scalar": lambda dtype, x, mask, y: f"tl.where({mask}, {y}, {x})",
    "aten::logical_not": lambda dtype, x: f"{x} == 0",
    "aten::logical_and": lambda dtype, x, y: f"{_is_set(x)} & {_is_set(y)}",
    "aten::logical_or": lambda dtype, x, y: f"{_is_set(x)} | {_is_set(y)}",
    "aten::bitwise_not": lambda dtype, x: f"{x} == 0" if dtype == "bool" else f"~{x}",
    "aten::bitwise_and.Tensor": _infix("&"),
    "aten::bitwise_or.Tensor": _infix("|"),
}
for _name in ("rsqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan",
              "tanh", "erf", "erfc", "exp2", "ceil", "floor", "trunc"):  # fmt: skip
    EXPRESSIONS[f"aten::{_name}"] = _function(_name)
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
for _name, _symbol in _COMPARISONS.items():
    for _overload in ("Scalar", "Tensor"):
        EXPRESSIONS[f"aten::{_name}.{_overload}"] = _infix(_symbol)


def _extreme(name, least):
    return [
        f'{{made}} = tl.{name}(tl.where(mask, {{0}}, float("{least}")), 1, keep_dims=True)',
        "{other} = tl.max((mask & ({0} != {0})).to(tl.int32), 1, keep_dims=True)",
        '{made} = tl.where({other} > 0, float("nan"), {made})',
    ]


# Of what needs all of a row, [rows, columns]: lines that set `made`, with `mask` where there is an
# element, `other` a name for one more value, `columns` how many there are.
REDUCTIONS = {
    "aten::sum.dim_IntList": ["{made} = tl.sum(tl.where(mask, {0}, 0.0), 1, keep_dims=True)"],
    "aten::mean.dim": [
        "{made} = tl.sum(tl.where(mask, {0}, 0.0), 1, keep_dims=True)",
        "{made} = libdevice.div_rn({made}, columns.to({made}.dtype))",
    ],
    "aten::amax": _extreme("max", "-inf"),
    "aten::amin": _extreme("min", "inf"),
    "aten::_softmax": [
        '{other} = tl.max(tl.where(mask, {0}, float("-inf")), 1, keep_dims=True)',
        "{made} = libdevice.exp({0} - {other})",
        "{other} = tl.sum(tl.where(mask, {made}, 0.0), 1, keep_dims=True)",
        "{made} = libdevice.div_rn({made}, {other})",
    ],
    "aten::_log_softmax": [
        '{other} = tl.max(tl.where(mask, {0}, float("-inf")), 1, keep_dims=True)',
        "{made} = {0} - {other}",
        "{other} = tl.sum(tl.where(mask, libdevice.exp({made}), 0.0), 1, keep_dims=True)",
        "{made} = {made} - libdevice.log({other})",
    ],
    "aten::_softmax_backward_data": [
        "{other} = tl.sum(tl.where(mask, {0} * {1}, 0.0), 1, keep_dims=True)",
        "{made} = ({0} - {other}) * {1}",
    ],
    "aten::_log_softmax_backward_data": [
        "{other} = tl.sum(tl.where(mask, {0}, 0.0), 1, keep_dims=True)",
        "{made} = {0} - libdevice.exp({1}) * {other}",
    ],
}  # fmt: skip
