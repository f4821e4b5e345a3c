"""Batch and group norm with their statistics as sums of shards."""

import math

import torch

from dtorch_mpi.sharding.decompositions_reduce import moments, statistics_dtype

aten = torch.ops.aten


def _per_channel(vector, ndim):
    return vector.view([1, -1] + [1] * (ndim - 2))


def _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    dims = [d for d in range(input.ndim) if d != 1]
    if not training:
        center, scale = running_mean, (running_var + eps).rsqrt()
        made = (input - _per_channel(center, input.ndim)) * _per_channel(scale, input.ndim)
        center, scale = input.new_empty([0]), input.new_empty([0])
    else:
        variance, center = moments(input, dims, 0, False)
        scale = (variance + eps).rsqrt()
        made = (input - _per_channel(center, input.ndim)) * _per_channel(scale, input.ndim)
        count = math.prod(input.shape[d] for d in dims)
        if running_mean is not None:
            running_mean.mul_(1 - momentum).add_(center, alpha=momentum)
        if running_var is not None:
            running_var.mul_(1 - momentum).add_(variance, alpha=momentum * count / (count - 1))
    if weight is not None:
        made = made * _per_channel(weight, input.ndim)
    if bias is not None:
        made = made + _per_channel(bias, input.ndim)
    kind = statistics_dtype(input, weight)
    return made.to(input.dtype), center.to(kind), scale.to(kind)


def native_batch_norm(
    input, weight, bias, running_mean, running_var, training, momentum, eps
):
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def no_stats(input, weight, bias, training, momentum, eps):
    return _batch_norm(input, weight, bias, None, None, training, momentum, eps)


def with_update(input, weight, bias, running_mean, running_var, momentum, eps):
    made = _batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return *made, torch.empty([0], dtype=torch.uint8, device=input.device)


def native_group_norm(input, weight, bias, batch, channels, spatial, group, eps):
    grouped = input.reshape(batch, group, -1)
    variance, center = moments(grouped, [2], 0, True)
    scale = (variance + eps).rsqrt()
    made = ((grouped - center) * scale).reshape(input.shape)
    if weight is not None:
        made = made * _per_channel(weight, input.ndim)
    if bias is not None:
        made = made + _per_channel(bias, input.ndim)
    kind = statistics_dtype(input, weight)
    return (made.to(input.dtype), center.to(kind).reshape(batch, group),
            scale.to(kind).reshape(batch, group))


DECOMPOSITIONS = {
    aten._batch_norm_with_update.default: with_update,
    aten.native_group_norm.default: native_group_norm,
}
# Their metadata is only known after they ran; with shards it is the decomposition's.
MEASURED = {
    aten.native_batch_norm.default: native_batch_norm,
    aten._native_batch_norm_legit.default: native_batch_norm,
    aten._native_batch_norm_legit.no_stats: no_stats,
}
