"""Operators that work along some dims and do the same at every place of the others."""

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from dtorch_mpi.sharding.formulas import LINEAR, WHOLE, labelled_rules
from dtorch_mpi.sharding.op_sharding import ShardedMeta
from dtorch_mpi.sharding.rule_table import register, register_formulas, register_function
from dtorch_mpi.sharding.selection import AxisRule

aten = torch.ops.aten


def _argument(args, kwargs, position, name, default):
    if len(args) > position and args[position] is not None:
        return args[position]
    return kwargs.get(name, default)


def _tensors(args, kwargs):
    return [
        item.meta
        for value in (*args, *kwargs.values())
        for item in (value if isinstance(value, list) else (value,))
        if isinstance(item, ShardedMeta)
    ]


def _dims(value, ndim):
    """A dim or dims argument as a set; none given means all."""
    if value is None or value == []:
        return set(range(ndim))
    return {d % max(ndim, 1) for d in (value if isinstance(value, (list, tuple)) else [value])}


def _same(metas, outputs, blocked, made_blocked=None):
    """Rules for tensors of as many dims each: all but the blocked ones are free."""

    def labels(ndim, without):
        return [WHOLE if d in without else d for d in range(ndim)]

    if len({meta.ndim for meta in metas}) != 1:
        return []
    made_blocked = blocked if made_blocked is None else made_blocked
    return labelled_rules(
        [(meta, labels(meta.ndim, blocked)) for meta in metas],
        [(o, () if o is None else labels(o.ndim, made_blocked)) for o in outputs],
    )


def _keeps_shape(position, name, default=-1):
    def rules(args, kwargs, outputs):
        metas = _tensors(args, kwargs)
        return _same(metas, outputs, _dims(_argument(args, kwargs, position, name, default),
                                           metas[0].ndim))

    return rules


for _position, _default, _operators in (
    (1, -1, (aten.sort.default, aten.logcumsumexp, aten.cummax, aten.cummin, aten.cumsum,
             aten.cumprod, aten._softmax, aten._log_softmax, aten._safe_softmax, aten.glu)),
    (2, -1, (aten.topk, aten._softmax_backward_data, aten._log_softmax_backward_data,
             aten.glu_backward)),
):
    register(*_operators)(_keeps_shape(_position, "dim", _default))
register(aten._fft_c2c.default, aten._fft_r2c.default, aten._fft_c2r.default, empty=False)(
    _keeps_shape(1, "dim", None)
)
register(aten.sort.stable)(_keeps_shape(9, "dim"))
register(aten.linalg_cross)(_keeps_shape(9, "dim"))


@register(aten.rot90)
def _rot90(args, kwargs, outputs):
    metas = _tensors(args, kwargs)
    return _same(metas, outputs, _dims(_argument(args, kwargs, 2, "dims", [0, 1]), metas[0].ndim))


@register(aten.flip)
def _flip(args, kwargs, outputs):
    meta = args[0].meta
    blocked = {d % max(meta.ndim, 1) for d in args[1]}
    rules = _same([meta], outputs, blocked)
    return rules + [AxisRule((p,), (p,)) for p in LINEAR]


@register(aten.roll)
def _roll(args, kwargs, outputs):
    meta = args[0].meta
    blocked = _dims(_argument(args, kwargs, 2, "dims", None), meta.ndim)
    return _same([meta], outputs, blocked) + [AxisRule((p,), (p,)) for p in LINEAR]


@register(aten.renorm)
def _renorm(args, kwargs, outputs):
    """Each slice along ``dim`` has a norm of its own."""
    meta = args[0].meta
    return _same([meta], outputs, set(range(meta.ndim)) - {args[2] % meta.ndim})


@register(aten.unfold, aten.unfold_copy)
def _unfold(args, kwargs, outputs):
    meta = args[0].meta
    cut = args[1] % max(meta.ndim, 1)
    labels = [WHOLE if d == cut else d for d in range(meta.ndim)]
    return labelled_rules([(meta, labels)], [(outputs[0], [*labels, WHOLE])])


def _reduces(position, name, default, keepdim_position):
    """Operators that reduce dims, in any way."""

    def rules(args, kwargs, outputs):
        meta = args[0].meta
        gone = _dims(_argument(args, kwargs, position, name, default), meta.ndim)
        keepdim = _argument(args, kwargs, keepdim_position, "keepdim", False)
        labels = [WHOLE if d in gone else d for d in range(meta.ndim)]
        made = labels if keepdim else [d for d in range(meta.ndim) if d not in gone]
        if any(o is None or o.ndim != len(made) for o in outputs):
            return None
        return labelled_rules([(meta, labels)], [(o, made) for o in outputs])

    return rules


register(aten.kthvalue)(_reduces(2, "dim", -1, 3))
register(aten.mode, aten.median.dim, aten.nanmedian.dim, aten.logsumexp)(
    _reduces(1, "dim", -1, 2)
)
register(aten.argmax, aten.argmin)(_reduces(1, "dim", None, 2))
register(aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype)(_reduces(2, "dim", None, 3))
register(aten.var.correction, aten.std.correction, aten.var_mean.correction,
         aten.std_mean.correction)(_reduces(1, "dim", None, 9))
register(aten.std_mean.dim, aten.var_mean.dim, aten.std.dim, aten.var.dim)(
    _reduces(1, "dim", None, 3)
)


def _any_or_all(reduce_op):
    """PyTorch's rules call the workers' answers a sum: what is linear then adds them up."""

    def rules(args, kwargs, outputs):
        meta = args[0].meta
        gone = _dims(_argument(args, kwargs, 1, "dim", None), meta.ndim)
        kept = _reduces(1, "dim", None, 2)(args, kwargs, outputs) or []
        return kept + [AxisRule((Partial(reduce_op),), (Shard(d),)) for d in sorted(gone)]

    return rules


register(aten.any.default, aten.any.dim, aten.any.dims)(_any_or_all("max"))
register(aten.all.default, aten.all.dim, aten.all.dims)(_any_or_all("min"))


@register(aten.aminmax, empty=False)
def _aminmax(args, kwargs, outputs):
    meta = args[0].meta
    rules = _reduces(9, "dim", None, 9)(args, kwargs, outputs) or []
    gone = _dims(kwargs.get("dim"), meta.ndim)
    made = (Partial("min"), Partial("max"))
    return rules + [AxisRule(made, (Shard(d),)) for d in sorted(gone)]


def _aligned(meta, index, dim):
    """Labels of a tensor and of an index into its ``dim``: dims of one size go together."""
    ndim = meta.ndim
    same = [d != dim and meta.shape[d] == index.shape[d] for d in range(ndim)]
    whole = [d if same[d] else WHOLE for d in range(ndim)]
    return whole, [("at", d) if d == dim else whole[d] for d in range(ndim)]


@register(aten.gather, compares=True)
def _gather(args, kwargs, outputs):
    meta, index = args[0].meta, args[2].meta
    if meta.ndim != index.ndim or meta.ndim == 0:
        return []
    own, picked = _aligned(meta, index, args[1] % meta.ndim)
    return labelled_rules([(meta, own), (index, picked)], [(outputs[0], picked)])


@register(aten.scatter, compares=True)
def _scatter(args, kwargs, outputs):
    meta, index = args[0].meta, args[2].meta
    source = args[3].meta if len(args) > 3 and isinstance(args[3], ShardedMeta) else None
    others = [m for m in (index, source) if m is not None and m.ndim]
    if meta.ndim == 0 or any(m.ndim != meta.ndim for m in others):
        return []
    dim = args[1] % meta.ndim
    labels = [
        WHOLE if d == dim or any(m.shape[d] != meta.shape[d] for m in others) else d
        for d in range(meta.ndim)
    ]
    inputs = [
        (given, labels if given.ndim else ()) for given in (meta, index, source)
        if given is not None
    ]
    return labelled_rules(inputs, [(outputs[0], labels)])


@register(aten.scatter_add, aten.scatter_reduce.two, adds=True, compares=True)
def _scatter_add(args, kwargs, outputs):
    rules = _scatter(args, kwargs, outputs)
    is_sum = len(args) == 4 or args[4] == "sum" and kwargs.get("include_self", True)
    if args[0].meta.ndim and is_sum and args[2].meta.shape == args[3].meta.shape:
        # Any part of what is added may be added anywhere.
        cut = Shard(args[1] % args[0].meta.ndim)
        rules.append(AxisRule((Partial("sum"),), (Partial("sum"), cut, cut)))
    return rules


@register(aten.index_select)
def _index_select(args, kwargs, outputs):
    meta, index = args[0].meta, args[2].meta
    if meta.ndim == 0 or index.ndim == 0:
        return []
    dim = args[1] % meta.ndim
    own = [WHOLE if d == dim else d for d in range(meta.ndim)]
    made = ["at" if d == dim else d for d in range(meta.ndim)]
    rules = labelled_rules([(meta, own), (index, ["at"])], [(outputs[0], made)])
    return rules + [AxisRule((p,), (p, Replicate())) for p in LINEAR]


def _index_writes(args, kwargs, outputs):
    """index_add and the like: (self, dim, index, source)."""
    meta = args[0].meta
    if meta.ndim == 0:
        return []
    dim = args[1] % meta.ndim
    own = [WHOLE if d == dim else d for d in range(meta.ndim)]
    inputs = []
    for value in args:
        if isinstance(value, ShardedMeta):
            like_self = value.meta.ndim == meta.ndim and value is not args[2]
            inputs.append((value.meta, own if like_self else [WHOLE] * value.meta.ndim))
    return labelled_rules(inputs, [(outputs[0], own)])


register(aten.index_copy, aten.index_fill, aten.index_reduce)(_index_writes)


@register(aten.index_add, adds=True)
def _index_add(args, kwargs, outputs):
    rules = _index_writes(args, kwargs, outputs)
    if rules and args[2].meta.ndim == 1:
        dim = args[1] % args[0].meta.ndim
        rules.append(
            AxisRule((Partial("sum"),), (Partial("sum"), Shard(0), Shard(dim)))
        )
    return rules


@register_function(aten.searchsorted.Tensor)
def _searchsorted(args, kwargs, outputs):
    values = "_" if args[0].meta.ndim == 1 else "..._"
    sorter = f", {values}" if isinstance(kwargs.get("sorter"), ShardedMeta) else ""
    wanted = "..." if args[0].meta.ndim == 1 else "...v"
    return f"{values}, {wanted}{sorter} -> {wanted}"


register_formulas({
    aten.searchsorted.Scalar: "_, _ -> ",
    aten.isin.Tensor_Scalar: "... -> ...",
    aten.take: "*, ... -> ...",
    aten.tril: "...__ -> ...__",
    aten.triu: "...__ -> ...__",
})


@register(aten.isin.Tensor_Tensor)
def _isin(args, kwargs, outputs):
    elements, tests = args[0].meta.ndim, args[1].meta.ndim
    rules = [AxisRule((Shard(d),), (Shard(d), Replicate())) for d in range(elements)]
    found = Partial("min" if _argument(args, kwargs, 3, "invert", False) else "max")
    return rules + [AxisRule((found,), (Replicate(), Shard(d))) for d in range(tests)]


@register(aten.diagonal_scatter)
def _diagonal_scatter(args, kwargs, outputs):
    meta = args[0].meta
    first, second = (
        _argument(args, kwargs, position, name, default) % meta.ndim
        for position, name, default in ((3, "dim1", 0), (4, "dim2", 1))
    )
    own = [WHOLE if d in (first, second) else d for d in range(meta.ndim)]
    source = [d for d in range(meta.ndim) if d not in (first, second)] + [WHOLE]
    return labelled_rules([(meta, own), (args[1].meta, source)], [(outputs[0], own)])


@register(aten.slice_scatter, compares=True)
def _slice_scatter(args, kwargs, outputs):
    meta = args[0].meta
    dim = _argument(args, kwargs, 2, "dim", 0) % meta.ndim
    own = [WHOLE if d == dim else d for d in range(meta.ndim)]
    return labelled_rules([(meta, own), (args[1].meta, own)], [(outputs[0], own)])


@register(aten.select_scatter)
def _select_scatter(args, kwargs, outputs):
    meta = args[0].meta
    dim = args[2] % meta.ndim
    own = [WHOLE if d == dim else d for d in range(meta.ndim)]
    return labelled_rules(
        [(meta, own), (args[1].meta, [d for d in own if d != WHOLE])], [(outputs[0], own)]
    )
