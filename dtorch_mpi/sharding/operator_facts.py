"""What an operator's schema says that sharding needs to know."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

# Arguments that hold the sizes of the (only) output, by operator.
_SIZE_POSITIONS = {
    **dict.fromkeys(
        (
            aten.new_empty.default, aten.new_full.default, aten.new_ones.default,
            aten.new_zeros.default, aten.new_empty_strided.default, aten.expand.default,
            aten.expand_copy.default, aten.reshape.default, aten.view.default,
            aten.view_copy.default, aten._unsafe_view.default,
            aten.select_backward.default, aten.slice_backward.default,
        ),
        1,
    ),
    **dict.fromkeys(
        (
            aten.upsample_nearest1d_backward.default, aten.upsample_nearest2d_backward.default,
            aten.upsample_nearest3d_backward.default, aten.upsample_bilinear2d_backward.default,
            aten.upsample_bicubic2d_backward.default, aten.upsample_linear1d_backward.default,
            aten.upsample_trilinear3d_backward.default,
        ),
        2,
    ),
}
_STRIDE_POSITIONS = {aten.new_empty_strided.default: 2}
# Arguments that operators write to although their schemas do not say so.
_HIDDEN_WRITES = {
    aten.native_batch_norm.default: ("running_mean", "running_var"),
    aten._batch_norm_impl_index.default: ("running_mean", "running_var"),
}

# Operators whose scalars decide how the values of shards are put together; capture keys its
# calls by them too.
_DECIDED_BY_SCALARS = {
    aten.linalg_vector_norm.default, aten.linalg__powsum.default, aten._foreach_norm.Scalar,
    aten.norm.Scalar, aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dtype,
    aten.norm.ScalarOpt_dim_dtype,
}


@dataclass(frozen=True)
class OperatorFacts:
    """The schema's facts; positions count positional arguments, then keyword-only ones."""

    names: tuple[str, ...]
    num_positional: int
    defaults: dict[str, object]
    is_scalar: tuple[bool, ...]
    written: frozenset[int]  # positions of arguments that the operator writes to
    # Output k is the written argument at this position (None: a new tensor or a view).
    returned: tuple[int | None, ...]
    size_position: int | None
    stride_position: int | None
    is_list: bool  # a _foreach_ or _fused_ operator over lists of tensors
    is_pointwise: bool
    answers_on_client: bool  # with what metadata tell: no tensor comes back

    def normalize(self, args: tuple, kwargs: dict) -> tuple[list, dict]:
        """Move keyword-only values to kwargs, and drop trailing and keyword defaults."""
        positional = list(args[: self.num_positional])
        named = dict(zip(self.names[self.num_positional :], args[self.num_positional :],
                         strict=False))
        named.update(kwargs)
        for position in range(len(positional), self.num_positional):
            if self.names[position] not in named:
                break
            positional.append(named.pop(self.names[position]))
        while positional and _is_default(
            self.defaults, self.names[len(positional) - 1], positional[-1]
        ):
            positional.pop()
        named = {k: v for k, v in named.items() if not _is_default(self.defaults, k, v)}
        return positional, named


def _is_default(defaults: dict, name: str, value: object) -> bool:
    if name not in defaults:
        return False
    default = defaults[name]
    return value is default or (
        type(value) in (int, float, bool, str, list, tuple) and value == default
    )


@lru_cache(None)
def facts_of(op: OpOverload) -> OperatorFacts:
    """The facts of ``op``, read once."""
    arguments = op._schema.arguments
    positional = [a for a in arguments if not a.kwarg_only]
    ordered = positional + [a for a in arguments if a.kwarg_only]
    written = {
        position
        for position, argument in enumerate(ordered)
        if argument.alias_info is not None
        and argument.alias_info.is_write
        or argument.name in _HIDDEN_WRITES.get(op, ())
    }
    returned = []
    for output in op._schema.returns:
        alias = output.alias_info
        source = None
        if alias is not None and alias.is_write:
            source = next(
                p for p in sorted(written)
                if ordered[p].alias_info.before_set == alias.before_set
            )
        returned.append(source)
    name = op._schema.name.partition("::")[2]
    return OperatorFacts(
        names=tuple(a.name for a in ordered),
        num_positional=len(positional),
        defaults={a.name: a.default_value for a in ordered if a.has_default_value()},
        is_scalar=tuple(
            str(a.type) in ("number", "float", "Optional[number]") and op not in _DECIDED_BY_SCALARS
            for a in ordered
        ),
        written=frozenset(written),
        returned=tuple(returned),
        size_position=_SIZE_POSITIONS.get(op),
        stride_position=_STRIDE_POSITIONS.get(op),
        is_list=name.startswith(("_foreach_", "_fused_", "_amp_foreach_")),
        is_pointwise=torch.Tag.pointwise in op.tags,
        answers_on_client=bool(op._schema.returns)
        and not any("Tensor" in str(output.type) for output in op._schema.returns),
    )
