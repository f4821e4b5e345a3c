"""The negative log likelihood with classes cut: each worker looks for targets among its own."""

import torch

from dtorch_mpi import _sharding  # noqa: F401 -- it has the operator
from dtorch_mpi.sharding.decompositions_reduce import positions

aten, dtorch = torch.ops.aten, torch.ops.dtorch
_NONE, _MEAN = 0, 1


def _class_dim(self):
    return 1 if self.ndim > 1 else 0


def _hits(self, target, ignore_index):
    """Where each target's class is, and which targets count."""
    dim = _class_dim(self)
    wanted = dtorch.class_targets(target, self.shape[dim], ignore_index).unsqueeze(dim)
    return positions(self, dim) == wanted, target != ignore_index


def _by_class(self, weight):
    shape = [1] * self.ndim
    shape[_class_dim(self)] = -1
    return weight.view(shape)


def nll_loss_forward(self, target, weight, reduction, ignore_index):
    dim = [_class_dim(self)]
    hits, valid = _hits(self, target, ignore_index)
    loss = -aten.sum.dim_IntList(aten.where.ScalarOther(hits, self, 0.0), dim)
    if weight is None:
        weights = valid.to(self.dtype)
    else:
        weights = aten.where.ScalarOther(hits, _by_class(self, weight), 0.0)
        weights = aten.sum.dim_IntList(weights, dim)
        loss = loss * weights
    if reduction == _NONE:
        return loss.to(self.dtype), torch.zeros([], dtype=self.dtype, device=self.device)
    total, total_weight = aten.sum.default(loss), aten.sum.default(weights)
    return total / total_weight if reduction == _MEAN else total, total_weight


def nll_loss_backward(
    grad_output, self, target, weight, reduction, ignore_index, total_weight
):
    hits, _ = _hits(self, target, ignore_index)
    grad = -grad_output
    if reduction == _MEAN:
        grad = grad / total_weight
    if grad.ndim:
        grad = grad.unsqueeze(_class_dim(self))
    if weight is not None:
        grad = grad * _by_class(self, weight)
    return aten.where.ScalarOther(hits, grad, 0.0).to(self.dtype)
