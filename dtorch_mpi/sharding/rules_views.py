"""Views that cut, join or move dims, and the copies of what views would give."""

import torch
from torch.distributed.tensor import Shard

from dtorch_mpi.sharding.formulas import LINEAR, WHOLE, labelled_rules
from dtorch_mpi.sharding.rule_table import register
from dtorch_mpi.sharding.selection import AxisRule

aten = torch.ops.aten

# The copy of a view lies as the view does.
VIEW_OF = {
    getattr(getattr(aten, name + "_copy"), overload): getattr(getattr(aten, name), overload)
    for name, overload in (
        ("permute", "default"), ("transpose", "int"), ("t", "default"), ("squeeze", "default"),
        ("squeeze", "dim"), ("squeeze", "dims"), ("unsqueeze", "default"), ("alias", "default"),
        ("detach", "default"), ("slice", "Tensor"), ("select", "int"), ("view", "default"),
        ("expand", "default"), ("diagonal", "default"), ("unbind", "int"),
        ("split", "Tensor"), ("split_with_sizes", "default"), ("view_as_real", "default"),
        ("view_as_complex", "default"),
    )
}


def _linear(count):
    return [AxisRule((p,) * count, (p,)) for p in LINEAR]


@register(aten.split.Tensor, aten.split_with_sizes, aten.unsafe_split.Tensor,
          aten.unsafe_split_with_sizes, aten.unbind.int, aten.unbind_copy.int,
          aten.split_copy.Tensor, aten.split_with_sizes_copy, aten.narrow_copy)
def _split(args, kwargs, outputs):
    meta = args[0].meta
    if len(args) > 3:
        dim = args[1]  # narrow_copy(self, dim, start, length)
    elif len(outputs) and outputs[0].ndim < meta.ndim:
        dim = args[1] if len(args) > 1 else 0  # unbind
    else:
        dim = args[2] if len(args) > 2 else 0
    if not outputs:
        return None
    dim %= meta.ndim
    own = [WHOLE if d == dim else d for d in range(meta.ndim)]
    made = own if outputs[0].ndim == meta.ndim else [d for d in range(meta.ndim) if d != dim]
    return labelled_rules([(meta, own)], [(o, made) for o in outputs]) + _linear(len(outputs))


def _two_dims(args, first):
    ndim = args[0].meta.ndim
    given = [
        args[position] if len(args) > position else default
        for position, default in ((first, 0), (first + 1, 1))
    ]
    return [d % ndim for d in given]


@register(aten.diagonal, aten.diagonal_copy)
def _diagonal(args, kwargs, outputs):
    meta = args[0].meta
    gone = _two_dims(args, 2)
    own = [WHOLE if d in gone else d for d in range(meta.ndim)]
    made = [d for d in range(meta.ndim) if d not in gone] + [WHOLE]
    return labelled_rules([(meta, own)], [(outputs[0], made)]) + _linear(1)


@register(aten.diag_embed)
def _diag_embed(args, kwargs, outputs):
    meta, ndim = args[0].meta, outputs[0].ndim
    new = [
        (args[position] if len(args) > position else default) % ndim
        for position, default in ((2, -2), (3, -1))
    ]
    free = iter(range(meta.ndim - 1))
    made = [WHOLE if d in new else next(free) for d in range(ndim)]
    own = [*range(meta.ndim - 1), WHOLE]
    return labelled_rules([(meta, own)], [(outputs[0], made)]) + _linear(1)


@register(aten.repeat)
def _repeat(args, kwargs, outputs):
    meta, times = args[0].meta, args[1]
    extra = len(times) - meta.ndim
    own = [d if times[d + extra] == 1 else WHOLE for d in range(meta.ndim)]
    return labelled_rules([(meta, own)], [(outputs[0], [WHOLE] * extra + own)]) + _linear(1)


@register(aten._to_copy)
def _to_copy(args, kwargs, outputs):
    meta = args[0].meta
    rules = [AxisRule((Shard(d),), (Shard(d),)) for d in range(meta.ndim)]
    before, after = meta.dtype, outputs[0].dtype
    if before.is_complex or after.is_floating_point and before != torch.bool or before == after:
        rules += _linear(1)
    return rules


@register(aten.trace)
def _trace(args, kwargs, outputs):
    return [AxisRule((p,), (p,)) for p in LINEAR]


@register(aten._chunk_cat)
def _chunk_cat(args, kwargs, outputs):
    tensors, dim = args[0], args[1]
    ndim = tensors[0].meta.ndim
    dim %= ndim
    if any(t.meta.ndim != ndim for t in tensors):
        return []
    # Dims before the one that is cut stay; those behind are joined.
    own = [d if d < dim else WHOLE for d in range(ndim)]
    made = own[:dim] + [WHOLE] * (outputs[0].ndim - dim)
    return labelled_rules([(t.meta, own) for t in tensors], [(outputs[0], made)])


@register(aten.resize_as_.default, compares=True)
def _resize_as(args, kwargs, outputs):
    meta, template = args[0].meta, args[1].meta
    if meta.shape != template.shape:
        return None
    return [AxisRule((Shard(d),), (Shard(d), Shard(d))) for d in range(meta.ndim)]
