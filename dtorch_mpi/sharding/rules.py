"""Rules of our own, for operators that PyTorch has none for, or dear or wrong ones.

A rule function takes the call's arguments and its outputs' metadata and lists what one mesh
axis may do, or gives None for a call that it leaves to PyTorch's rules. Replicating
everything is always added.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch._ops import OpOverload
from torch.distributed.tensor import Partial, Replicate, Shard

from dtorch_mpi.sharding.formulas import LINEAR
from dtorch_mpi.sharding.op_sharding import ShardedMeta
from dtorch_mpi.sharding.selection import AxisRule

aten = torch.ops.aten


@dataclass(frozen=True)
class OwnRule:
    rules: Callable[[list, dict, list], list[AxisRule] | None]
    # Rewrites the arguments for the cache's key, where their exact value does not matter.
    key: Callable[[list], object] | None = None
    # Whether the operator is right on shards without elements.
    empty: bool = False
    # Whether an input that is whole may be added by one worker only; see selection.Call.
    adds: bool = False
    # Whether the rule asks which sizes of its inputs are equal.
    compares: bool = False


OWN_RULES: dict[OpOverload, OwnRule] = {}


def _rule(*ops: OpOverload, key: Callable[[list], object] | None = None):
    def register(function):
        for op in ops:
            OWN_RULES[op] = OwnRule(function, key)
        return function

    return register


def _argument(args: list, position: int, default: object) -> object:
    return args[position] if len(args) > position and args[position] is not None else default


def _full_slice(size: int, args: list, first: int) -> bool:
    start, end = _argument(args, first, 0), _argument(args, first + 1, size)
    return start in (0, -size) and end >= size and _argument(args, first + 2, 1) == 1


def _is_whole_slice(args: list) -> bool:
    meta = args[0].meta
    return _full_slice(meta.shape[_argument(args, 1, 0)], args, 2)


@_rule(aten.slice.Tensor, key=lambda args: (*args[:2], _is_whole_slice(args)))
def _slice(args, kwargs, outputs):
    meta = args[0].meta
    cut = None if _is_whole_slice(args) else _argument(args, 1, 0) % meta.ndim
    rules = [AxisRule((Shard(d),), (Shard(d),)) for d in range(meta.ndim) if d != cut]
    return rules + [AxisRule((p,), (p,)) for p in LINEAR]


@_rule(aten.slice_backward.default, key=lambda args: (args[0], len(args[1]), args[2]))
def _slice_backward(args, kwargs, outputs):
    ndim = len(args[1])
    rules = [AxisRule((Shard(d),), (Shard(d),)) for d in range(ndim) if d != args[2] % ndim]
    return rules + [AxisRule((p,), (p,)) for p in LINEAR]


@_rule(aten.select.int, key=lambda args: args[:2])
def _select(args, kwargs, outputs):
    ndim = args[0].meta.ndim
    cut = args[1] % ndim
    rules = [AxisRule((Shard(d - (d > cut)),), (Shard(d),)) for d in range(ndim) if d != cut]
    return rules + [AxisRule((p,), (p,)) for p in LINEAR]


@_rule(aten.select_backward.default, key=lambda args: (args[0], len(args[1]), args[2]))
def _select_backward(args, kwargs, outputs):
    ndim = len(args[1])
    cut = args[2] % ndim
    rules = [AxisRule((Shard(d),), (Shard(d - (d > cut)),)) for d in range(ndim) if d != cut]
    return rules + [AxisRule((p,), (p,)) for p in LINEAR]


@_rule(aten.cat.default)
def _cat(args, kwargs, outputs):
    tensors = args[0]
    ndim = outputs[0].ndim
    cut = _argument(args, 1, 0) % ndim
    placements = [Shard(d) for d in range(ndim) if d != cut] + list(LINEAR)
    # Empty 1-D tensors may stand among the others, and add nothing: caches begin as one.
    adds = [given.meta.ndim == ndim and given.meta.shape != (0,) for given in tensors]
    return [
        AxisRule((p,), tuple(p if counts else Replicate() for counts in adds)) for p in placements
    ]


@_rule(aten.lift_fresh.default, aten.lift.default)
def _as_it_is(args, kwargs, outputs):
    placements = [Shard(d) for d in range(args[0].meta.ndim)] + list(LINEAR)
    return [AxisRule((p,), (p,)) for p in placements]


@_rule(aten.linalg__powsum.default)
def _power_sum(args, kwargs, outputs):
    # PyTorch's own rule takes partial sums too, as if powers were linear.
    ndim, keeps = args[0].meta.ndim, _argument(args, 3, False)
    dims = {d % ndim for d in _argument(args, 2, None) or range(ndim)}
    rules = []
    for d in range(ndim):
        kept = d if keeps else d - sum(cut < d for cut in dims)
        rules.append(AxisRule((Partial("sum") if d in dims else Shard(kept),), (Shard(d),)))
    return rules


@_rule(aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default)
def _fractional_pool(args, kwargs, outputs):
    # The samples always have a batch dim: PyTorch's rule cuts them like an input that has none.
    is_batched = args[0].meta.ndim == len(args[1]) + 2
    cuts = [(0, 0), (1, 1)] if is_batched else [(0, 1)]
    return [
        AxisRule((Shard(dim), Shard(dim)), (Shard(dim), Shard(sampled))) for dim, sampled in cuts
    ]


# Attention: batch and heads are independent. Dims 0 and 1 of these, by argument name.
_BY_HEAD = {"query", "key", "value", "out", "grad_out", "logsumexp"}
_BY_HEAD_OUTPUTS = {
    "output", "logsumexp", "grad_query", "grad_key", "grad_value", "grad_attn_bias",
    "debug_attn_mask",
}
_MASKS = {"attn_mask", "attn_bias"}


def _attention_of(op: OpOverload):
    positional = [a.name for a in op._schema.arguments if not a.kwarg_only]
    returns = [r.name for r in op._schema.returns if "Tensor" in str(r.type)]

    def attention(args, kwargs, outputs):
        named = dict(zip(positional, args, strict=False)) | kwargs
        tensors = {n: v for n, v in named.items() if isinstance(v, ShardedMeta)}
        query, key = tensors["query"].meta, tensors["key"].meta
        rules = []
        for dim in range(query.ndim - 2):
            if query.shape[dim] != key.shape[dim]:
                continue  # grouped heads, or a broadcast batch
            inputs = []
            for name, given in tensors.items():
                mask_dim = dim - (query.ndim - given.meta.ndim)
                if name in _MASKS and mask_dim >= 0 and given.meta.shape[mask_dim] > 1:
                    inputs.append(Shard(mask_dim))
                else:
                    inputs.append(Shard(dim) if name in _BY_HEAD else Replicate())
            made = []
            for name, output in zip(returns, outputs, strict=True):
                if output is None:
                    made.append(None)
                elif name not in _BY_HEAD_OUTPUTS or output.ndim <= dim:
                    made.append(Replicate())
                elif output.shape[dim] == query.shape[dim]:
                    made.append(Shard(dim))
                else:
                    # The gradient of a mask that all batches or heads share.
                    made.append(Partial("sum") if output.numel() else Replicate())
            rules.append(AxisRule(tuple(made), tuple(inputs)))
        return rules

    return attention


for _op in (
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    aten._scaled_dot_product_fused_attention_overrideable.default,
    aten._scaled_dot_product_fused_attention_overrideable_backward.default,
):
    _rule(_op)(_attention_of(_op))
