"""Decompositions of operators that reduce, or normalize over, a dim that is cut.

Each function has its operator's signature. What it calls is sharded operator by operator: the
reductions become sums and maxima of shards, and nothing is gathered.
"""

import math

import torch
from torch.distributed.tensor import Replicate, Shard

aten = torch.ops.aten
_SUM = 2
# Floating point that sums are kept in.
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def _dims(dim, ndim):
    if dim is None or dim == []:
        return list(range(ndim))
    return [d % max(ndim, 1) for d in (dim if isinstance(dim, (list, tuple)) else [dim])]


def _count(tensor, dims):
    return math.prod(tensor.shape[d] for d in dims)


def mean(self, *, dtype=None):
    return mean_dim(self, None, False, dtype=dtype)


def mean_dim(self, dim, keepdim=False, *, dtype=None):
    """The sum over the count: shards may hold different numbers of elements."""
    dtype = dtype or self.dtype
    dims = _dims(dim, self.ndim)
    wide = _WIDER.get(dtype, dtype)
    total = aten.sum.dim_IntList(self, dims, keepdim, dtype=wide)
    return (total / _count(self, dims)).to(dtype)


def moments(self, dim, correction, keepdim):
    dims = _dims(dim, self.ndim)
    wide = _WIDER.get(self.dtype, self.dtype)
    count = _count(self, dims)
    center = aten.sum.dim_IntList(self, dims, True, dtype=wide) / count
    off = self - center
    square = off.abs().square() if self.is_complex() else off * off
    total = aten.sum.dim_IntList(square, dims, keepdim)
    divisor = max(count - (1 if correction is None else correction), 0)
    variance = total / divisor
    center = center if keepdim else aten.squeeze.dims(center, dims)
    return variance, center


def _as(tensor, like):
    return tensor.to(like.dtype) if tensor.is_complex() == like.is_complex() else tensor


def var_correction(self, dim=None, *, correction=None, keepdim=False):
    return _as(moments(self, dim, correction, keepdim)[0], self)


def std_correction(self, dim=None, *, correction=None, keepdim=False):
    return _as(moments(self, dim, correction, keepdim)[0].sqrt(), self)


def var_mean_correction(self, dim=None, *, correction=None, keepdim=False):
    variance, center = moments(self, dim, correction, keepdim)
    return _as(variance, self), _as(center, self)


def std_mean_correction(self, dim=None, *, correction=None, keepdim=False):
    variance, center = moments(self, dim, correction, keepdim)
    return _as(variance.sqrt(), self), _as(center, self)


def _shifted_exp(self, dim):
    """exp(x - max) and its sum, for the sum's own precision."""
    top = aten.amax(self, [dim], True)
    shifted = self - top
    return shifted, shifted.exp()


def softmax(self, dim, half_to_float):
    wide = self.to(_WIDER.get(self.dtype, self.dtype))
    _, powers = _shifted_exp(wide, dim)
    result = powers / aten.sum.dim_IntList(powers, [dim], True)
    return result if half_to_float else result.to(self.dtype)


def safe_softmax(self, dim, dtype=None):
    """softmax, with 0 where a whole row is minus infinity."""
    made = softmax(self if dtype is None else self.to(dtype), dim, False)
    masked = aten.amax(self, [dim], True) == -math.inf
    return aten.where.ScalarSelf(masked, 0.0, made).to(made.dtype)


def log_softmax(self, dim, half_to_float):
    wide = self.to(_WIDER.get(self.dtype, self.dtype))
    shifted, powers = _shifted_exp(wide, dim)
    result = shifted - aten.sum.dim_IntList(powers, [dim], True).log()
    return result if half_to_float else result.to(self.dtype)


def softmax_backward(grad_output, output, dim, input_dtype):
    product = grad_output * output
    total = aten.sum.dim_IntList(product, [dim], True)
    return (product - output * total).to(input_dtype)


def log_softmax_backward(grad_output, output, dim, input_dtype):
    total = aten.sum.dim_IntList(grad_output, [dim], True)
    return (grad_output - output.exp() * total).to(input_dtype)


def logsumexp(self, dim, keepdim=False):
    dims = _dims(dim, self.ndim)
    self = self if self.is_floating_point() else self.to(torch.get_default_dtype())
    top = aten.amax(self, dims, True)
    # Rows of one infinity have no difference to it.
    safe = aten.where.ScalarOther(top.abs() != math.inf, top, 0.0).to(self.dtype)
    total = aten.sum.dim_IntList((self - safe).exp(), dims, True).log() + safe
    return total if keepdim else aten.squeeze.dims(total, dims)


def positions(self, dim):
    """The indices along ``dim``, lying as the tensor's dim does."""
    mesh, placements = self.device_mesh, self.placements
    made = torch.arange(self.shape[dim], device=self.device)
    wanted = [Shard(0) if isinstance(p, Shard) and p.dim == dim else Replicate()
              for p in placements]
    shape = [1] * self.ndim
    shape[dim] = -1
    moved = made.redistribute(mesh, wanted)
    for _ in range(self.ndim - dim - 1):
        moved = moved.unsqueeze(-1)
    return moved


def _first(self, dims, keepdim, reach, places, far):
    """The least of ``places`` where the greatest (or least) value is; NaN is beyond all."""
    found = self == reach(self, dims, True)
    first = aten.amin(aten.where.ScalarOther(found, places, far), dims, keepdim)
    if not self.is_floating_point():
        return first
    nan = aten.amin(aten.where.ScalarOther(self != self, places, far), dims, keepdim)
    return aten.where.self(nan < far, nan, first)


def _arg(reach):
    def arg(self, dim=None, keepdim=False):
        if dim is not None:
            dim %= self.ndim
            return _first(self, [dim], keepdim, reach, positions(self, dim), self.shape[dim])
        places, stride = None, 1
        for d in reversed(range(self.ndim)):
            part = positions(self, d) * stride
            places = part if places is None else places + part
            stride *= self.shape[d]
        return _first(self, list(range(self.ndim)), keepdim, reach, places, self.numel())

    return arg


argmax, argmin = _arg(aten.amax), _arg(aten.amin)


def _mean_of(loss, position):
    """A loss's mean as its sum over the count."""

    def mean_loss(*args, **kwargs):
        arguments = list(args)
        arguments[position] = _SUM
        total = loss(*arguments, **kwargs)
        return total / torch.broadcast_shapes(args[0].shape, args[1].shape).numel()

    return mean_loss


def _gradient_of_mean(gradient, position):
    """As that of the sum, of a gradient over the count."""

    def mean_gradient(grad_output, *args, **kwargs):
        arguments = list(args)
        arguments[position - 1] = _SUM
        count = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()
        return gradient(grad_output / count, *arguments, **kwargs)

    return mean_gradient


MEAN_LOSSES = {
    loss: (position, _mean_of(loss, position))
    for loss, position in (
        (aten.mse_loss.default, 2), (aten.smooth_l1_loss.default, 2), (aten.huber_loss.default, 2),
        (aten.soft_margin_loss.default, 2), (aten.binary_cross_entropy.default, 3),
        (aten.binary_cross_entropy_with_logits.default, 4),
    )
} | {
    gradient: (position, _gradient_of_mean(gradient, position))
    for gradient, position in (
        (aten.mse_loss_backward.default, 3), (aten.smooth_l1_loss_backward.default, 3),
        (aten.huber_loss_backward.default, 3), (aten.soft_margin_loss_backward.default, 3),
        (aten.binary_cross_entropy_backward.default, 4),
    )
}


def native_layer_norm(input, normalized_shape, weight, bias, eps):
    dims = list(range(input.ndim - len(normalized_shape), input.ndim))
    variance, center = moments(input, dims, 0, True)
    scale = (variance + eps).rsqrt()
    made = (input - center) * scale
    if weight is not None:
        made = made * weight
    if bias is not None:
        made = made + bias
    kind = statistics_dtype(input, weight)
    return made.to(input.dtype), center.to(kind), scale.to(kind)


def statistics_dtype(input, weight):
    """What mean and deviation are given in: the CPU keeps them in the weight's precision."""
    return input.dtype if weight is None else torch.promote_types(input.dtype, weight.dtype)


def native_layer_norm_backward(
    grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask
):
    inner = list(range(input.ndim - len(normalized_shape), input.ndim))
    outer = list(range(input.ndim - len(normalized_shape)))
    normal = (input - mean) * rstd
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = grad_out if weight is None else grad_out * weight
        count = _count(input, inner)
        first = aten.sum.dim_IntList(scaled, inner, True) / count
        second = aten.sum.dim_IntList(scaled * normal, inner, True) / count
        grad_input = ((scaled - first - normal * second) * rstd).to(input.dtype)
    if output_mask[1] and weight is not None:
        product = grad_out * normal
        grad_weight = aten.sum.dim_IntList(product, outer, False) if outer else product
        grad_weight = grad_weight.to(weight.dtype)
    if output_mask[2] and bias is not None:
        grad_bias = aten.sum.dim_IntList(grad_out, outer, False) if outer else grad_out
        grad_bias = grad_bias.to(bias.dtype)
    return grad_input, grad_weight, grad_bias


def _off_diagonal(self):
    """The column less the row of each element of a batch of matrices."""
    return positions(self, self.ndim - 1) - positions(self, self.ndim - 2)


def tril(self, diagonal=0):
    return aten.where.ScalarOther(_off_diagonal(self) <= diagonal, self, 0).to(self.dtype)


def triu(self, diagonal=0):
    return aten.where.ScalarOther(_off_diagonal(self) >= diagonal, self, 0).to(self.dtype)


def trace(self):
    return aten.sum.default(aten.where.ScalarOther(_off_diagonal(self) == 0, self, 0))


def dist(self, other, p=2):
    return aten.linalg_vector_norm(self - other, p)


def norm_dim(self, p, dim, keepdim=False):
    return aten.linalg_vector_norm(self, 2 if p is None else p, dim, keepdim)


def norm_dim_dtype(self, p, dim, keepdim, *, dtype):
    return aten.linalg_vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


DECOMPOSITIONS = {
    aten.mean.default: mean,
    aten.mean.dim: mean_dim,
    aten.var.correction: var_correction,
    aten.std.correction: std_correction,
    aten.var_mean.correction: var_mean_correction,
    aten.std_mean.correction: std_mean_correction,
    aten._softmax.default: softmax,
    aten._safe_softmax.default: safe_softmax,
    aten._log_softmax.default: log_softmax,
    aten._softmax_backward_data.default: softmax_backward,
    aten._log_softmax_backward_data.default: log_softmax_backward,
    aten.logsumexp.default: logsumexp,
    aten.argmax.default: argmax,
    aten.argmin.default: argmin,
    aten.native_layer_norm.default: native_layer_norm,
    aten.native_layer_norm_backward.default: native_layer_norm_backward,
    aten.dist.default: dist,
    aten.tril.default: tril,
    aten.triu.default: triu,
    aten.trace.default: trace,
    aten.norm.ScalarOpt_dim: norm_dim,
    aten.norm.ScalarOpt_dim_dtype: norm_dim_dtype,
}
