"""Elementwise operators that are not tagged so, and losses."""

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from dtorch_mpi import _sharding  # noqa: F401 -- it has operators of ours
from dtorch_mpi.sharding.formulas import broadcast_rules
from dtorch_mpi.sharding.op_sharding import ShardedMeta
from dtorch_mpi.sharding.rule_table import register
from dtorch_mpi.sharding.selection import AxisRule

aten, dtorch = torch.ops.aten, torch.ops.dtorch
_NONE, _MEAN, _SUM = 0, 1, 2

register(
    aten.complex.default, aten.polar.default, aten.floor_divide.default, aten.rsub.Tensor,
    aten.rsub.Scalar, aten.hardswish.default, aten.hardswish_backward.default,
    aten._prelu_kernel.default, aten._prelu_kernel_backward.default,
    aten.masked_fill.Tensor, aten.masked_fill.Scalar, aten.where.self,
    aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar,
    aten.fill.Scalar, aten.fill.Tensor, aten.lerp.Scalar, aten.lerp.Tensor, aten.copysign.Tensor,
    aten.log_sigmoid_backward.default, aten.clamp.Tensor, aten.float_power.Tensor_Tensor,
    dtorch.class_targets.default,
)(broadcast_rules)


@register(aten.log_sigmoid_forward)
def _log_sigmoid(args, kwargs, outputs):
    # The second output is scratch of the CPU's kernel, and may be empty.
    return [
        AxisRule((Shard(d), Shard(d) if outputs[1].ndim == outputs[0].ndim else Replicate()),
                 (Shard(d),))
        for d in range(args[0].meta.ndim)
    ]


def _reduction(args, position):
    return args[position] if len(args) > position else 1


def _pointwise_loss(position):
    """Losses of two tensors, element by element, then kept, or summed."""

    def rules(args, kwargs, outputs):
        reduction = _reduction(args, position)
        tensors = [v.meta for v in args if isinstance(v, ShardedMeta)]
        if reduction == _NONE:
            return broadcast_rules(args, kwargs, outputs)
        if reduction != _SUM or len({meta.shape for meta in tensors}) != 1:
            return []
        return [
            AxisRule((Partial("sum"),), (Shard(d),) * len(tensors))
            for d in range(tensors[0].ndim)
        ]

    return rules


register(aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default,
         aten.soft_margin_loss.default)(_pointwise_loss(2))
register(aten.binary_cross_entropy.default)(_pointwise_loss(3))
register(aten.binary_cross_entropy_with_logits.default)(_pointwise_loss(4))


def _pointwise_gradient(position):
    """Gradients of those; one of a mean counts the elements."""

    def rules(args, kwargs, outputs):
        if _reduction(args, position) == _MEAN:
            return []
        return broadcast_rules(args, kwargs, outputs)

    return rules


register(aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default,
         aten.huber_loss_backward.default, aten.soft_margin_loss_backward.default,
         )(_pointwise_gradient(3))
register(aten.binary_cross_entropy_backward.default)(_pointwise_gradient(4))


def _rows(position):
    """Losses of rows, each of which needs its row of the input whole."""

    def rules(args, kwargs, outputs):
        reduction = _reduction(args, position)
        if args[0].meta.ndim != 2 or reduction not in (_NONE, _SUM):
            return []
        wanted, index = [], 0
        for value in args:
            if isinstance(value, ShardedMeta):
                wanted.append(Shard(0) if index < 2 else Replicate())
                index += 1
        first = Shard(0) if reduction == _NONE else Partial("sum")
        return [AxisRule((first, *[Shard(0)] * (len(outputs) - 1)), tuple(wanted))]

    return rules


register(aten.multi_margin_loss.default)(_rows(5))
register(aten.multilabel_margin_loss_forward.default)(_rows(2))


@register(aten.nll_loss2d_forward.default)
def _nll_loss2d(args, kwargs, outputs):
    reduction = _reduction(args, 3)
    if reduction not in (_NONE, _SUM):
        return None
    rules = []
    for target_dim in range(args[1].meta.ndim):
        scores = Shard(target_dim + (target_dim > 0))
        weight = [Replicate()] if isinstance(args[2], ShardedMeta) else []
        made = (Shard(target_dim), Replicate()) if reduction == _NONE else (Partial("sum"),) * 2
        rules.append(AxisRule(made, (scores, Shard(target_dim), *weight)))
    return rules


@register(aten.nll_loss2d_backward.default)
def _nll_loss2d_backward(args, kwargs, outputs):
    rules = []
    for target_dim in range(args[2].meta.ndim):
        scores = Shard(target_dim + (target_dim > 0))
        grad = Shard(target_dim) if args[0].meta.ndim else Replicate()
        weight = [Replicate()] if isinstance(args[3], ShardedMeta) else []
        rules.append(
            AxisRule((scores,), (grad, scores, Shard(target_dim), *weight, Replicate()))
        )
    return rules
