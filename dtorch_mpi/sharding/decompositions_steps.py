"""Calls that no rule serves as a whole, taken one step at a time.

An operator works along several dims, say, and each is cut by some axis. While one dim is worked on
the axes that cut it can cut another, and that takes no worker more than its share.
"""

import torch
from torch.distributed.tensor import Shard

aten = torch.ops.aten


def flip(self, dims):
    for dim in dims:
        self = aten.flip(self, [dim])
    return self


def roll(self, shifts, dims=()):
    shifts = shifts if isinstance(shifts, (list, tuple)) else [shifts]
    for shift, dim in zip(shifts, dims, strict=True):
        self = aten.roll(self, [shift], [dim])
    return self


def fft_c2c(self, dim, normalization, forward):
    for one in dim:
        self = aten._fft_c2c(self, [one], normalization, forward)
    return self


def fft_r2c(self, dim, normalization, onesided):
    *others, last = dim
    made = aten._fft_r2c(self, [last], normalization, onesided)
    return fft_c2c(made, others, normalization, True)


def fft_c2r(self, dim, normalization, last_dim_size):
    *others, last = dim
    made = fft_c2c(self, others, normalization, False)
    return aten._fft_c2r(made, [last], normalization, last_dim_size)


def squeeze(self, dim=None):
    """Only the dims of size 1: on a worker others may have one row too."""
    dims = range(self.ndim) if dim is None else dim if isinstance(dim, (list, tuple)) else [dim]
    return aten.squeeze.dims(self, [d for d in dims if self.shape[d] == 1])


def addbmm(self, batch1, batch2, *, beta=1, alpha=1):
    """The product by itself, whose sum over the batch needs no whole matrix, and then self."""
    product = aten.addbmm(self.new_zeros([]), batch1, batch2, beta=0, alpha=alpha)
    return product if beta == 0 else self * beta + product


_SQUEEZES = {aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims}
_STEPS = {
    aten.flip.default: (1, flip),
    aten.roll.default: (2, roll),
    aten._fft_c2c.default: (1, fft_c2c),
    aten._fft_r2c.default: (1, fft_r2c),
    aten._fft_c2r.default: (1, fft_c2r),
}


def steps_of(op, args: list):
    """The function that takes the call's steps one by one, or None where there are not several."""
    if op in _SQUEEZES:
        return squeeze if _has_longer_dims(args) else None
    if op is aten.addbmm.default:
        return addbmm if any(isinstance(p, Shard) for p in args[0].placements) else None
    position, function = _STEPS.get(op, (0, None))
    has_several = function is not None and len(args) > position and len(args[position]) > 1
    return function if has_several else None


def _has_longer_dims(args):
    sizes = args[0].meta.shape
    given = args[1] if len(args) > 1 else list(range(len(sizes)))
    return any(sizes[d] > 1 for d in (given if isinstance(given, list) else [given]))
