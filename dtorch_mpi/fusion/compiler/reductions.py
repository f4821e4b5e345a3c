"""Operators that reduce the columns of each row, or need all of them, as inductor compiles them.

Of tensors as [rows, columns]; what is reduced stays as [rows, 1]. The sums are in another order
than ATen's. native_layer_norm is missing, since what inductor makes of it is slower than ATen's
kernel (1024 rows of 256 floats after an addition, one thread: 0.52 ms for 0.31); so are gelu and
its backward (a million floats, two threads: 0.74 ms for 0.28, 1.02 for 0.61).
"""

import torch

aten = torch.ops.aten


def _softmax_backward(gradient, made):
    return aten._softmax_backward_data(gradient, made, -1, made.dtype)


def _log_softmax_backward(gradient, made):
    return aten._log_softmax_backward_data(gradient, made, -1, made.dtype)


# Operator -> (formula, whether the result has one element for each row).
REDUCTIONS = {
    "aten::sum.dim_IntList": (lambda x: x.sum(-1, keepdim=True), True),
    "aten::mean.dim": (lambda x: x.mean(-1, keepdim=True), True),
    "aten::amax": (lambda x: x.amax(-1, keepdim=True), True),
    "aten::amin": (lambda x: x.amin(-1, keepdim=True), True),
    "aten::_softmax": (lambda x: torch.softmax(x, -1), False),
    "aten::_log_softmax": (lambda x: torch.log_softmax(x, -1), False),
    "aten::_softmax_backward_data": (_softmax_backward, False),
    "aten::_log_softmax_backward_data": (_log_softmax_backward, False),
}
