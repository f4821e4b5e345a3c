"""The rules that come with PyTorch's DTensor.

The only module that touches them: they are private. Tested with torch 2.13; operator by operator
(tests/sharding) with 2.11, whose rules are mostly for the whole mesh, and 2.14, whose are mostly
for one axis. Nothing here makes a process group, and no rank's own sizes are asked for.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from dtorch_mpi.sharding.op_sharding import Placements, ShardedMeta
from dtorch_mpi.sharding.placements import is_representable
from dtorch_mpi.sharding.selection import AxisRule, Choice

TESTED_VERSIONS = ("2.13",)
_OLDEST_VERSION = (2, 11)

try:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
    from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy
    from torch.distributed.tensor._ops.single_dim_strategy import _ShardingPlaceholder

    _PROPAGATOR = DTensor._op_dispatcher.sharding_propagator
    _AXIS_RULES = _PROPAGATOR.op_single_dim_strategy_funcs
    _MESH_RULES = _PROPAGATOR.op_strategy_funcs
    _SCHEMA_INFO = _PROPAGATOR.op_to_schema_info
    _wrap = _PROPAGATOR._wrap_with_op_strategy
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"dtorch_mpi reads the sharding rules inside PyTorch and does not find them in torch "
        f"{torch.__version__} ({error}). It was tested with torch {', '.join(TESTED_VERSIONS)}: "
        f"install that, or a newer dtorch_mpi."
    ) from error

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _OLDEST_VERSION:
    raise ImportError(
        f"dtorch_mpi needs torch {'.'.join(map(str, _OLDEST_VERSION))} or newer, got "
        f"{torch.__version__}"
    )


aten = torch.ops.aten

# Their axis rules compare sizes, with one another or with an argument.
_SIZE_COMPARING = {
    aten.gather.default, aten.scatter.src, aten.scatter.value, aten.scatter_.src,
    aten.scatter_.value, aten.scatter_add.default, aten.scatter_add_.default,
    aten.split.Tensor,
}
# Their filters describe what DTensor's own way of running them supports, not what is right.
_FILTERED_FOR_DTENSOR = {aten.argmax.default, aten.argmin.default}
# Their rule groups dims of equal products, and loops for ever over products of 0.
GROUPING_DIMS = {
    aten.view.default, aten.view_copy.default, aten.reshape.default, aten._unsafe_view.default,
}
# With 2.11 their rules take the weight and the bias, here by their places, as they lie, and run on
# them as though they were whole.
_WHOLE_BY_ASSUMPTION = {
    aten.native_layer_norm_backward.default: (5, 6),
    aten._fused_rms_norm_backward.default: (4,),
}


class NoRuleError(Exception):
    """PyTorch has no rule for the call, or its rule refuses it."""


def has_axis_rules(op: OpOverload) -> bool:
    """Whether PyTorch has rules for one axis at a time."""
    return op in _AXIS_RULES


def has_mesh_rules(op: OpOverload) -> bool:
    """Whether PyTorch has rules for the whole mesh."""
    return op in _MESH_RULES


def allows_uneven(op: OpOverload) -> bool:
    """Whether PyTorch says that shards of any size, empty ones too, are fine."""
    return getattr(_AXIS_RULES.get(op), "allow_uneven_sharding", False)


def reads_sizes(op: OpOverload) -> bool:
    """Whether the rules ask more of a size than :func:`layout.size_class` tells."""
    if op not in _AXIS_RULES:
        return True
    return op in _SIZE_COMPARING or _filter_of(op) is not None


def _filter_of(op: OpOverload) -> Callable | None:
    if op in _FILTERED_FOR_DTENSOR:
        return None
    return getattr(_AXIS_RULES[op], "full_mesh_strategy_filter", None)


def axes_filter(
    op: OpOverload, args: list, kwargs: dict, inputs: list[ShardedMeta]
) -> Callable[[list[Placements]], bool] | None:
    """What tells whether placements of the inputs that suit axis by axis suit together.

    None where they always do. The function it gives raises NoRuleError.
    """
    suits = _filter_of(op)
    if suits is None:
        return None
    schema = _schema(op, args, kwargs)

    def accepts(wanted: list[Placements]) -> bool:
        specs = [
            DTensorSpec(given.mesh, placements, tensor_meta=_meta(given.meta))
            for given, placements in zip(inputs, wanted, strict=True)
        ]
        try:
            return suits(inputs[0].mesh, schema, specs, ())
        except Exception as error:
            raise NoRuleError(str(error)) from error

    return accepts


def axis_rules(op: OpOverload, args: list, kwargs: dict, num_inputs: int) -> list[AxisRule]:
    """PyTorch's rules for one axis, and the one that replicates everything.

    Raises NoRuleError.
    """
    entry = _AXIS_RULES[op]
    try:
        listed = getattr(entry, "func", entry)(op, _tuple_metas(args), _dict_metas(kwargs))
    except Exception as error:
        raise NoRuleError(str(error)) from error
    num_outputs = len(listed[0]) - num_inputs if listed else len(op._schema.returns)
    found = []
    for row in listed:
        row = [Shard(p.dim) if isinstance(p, _ShardingPlaceholder) else p for p in row]
        outputs, inputs = tuple(row[:num_outputs]), tuple(row[num_outputs:])
        if len(inputs) != num_inputs or not all(map(is_representable, inputs)):
            continue
        if all(p is None or is_representable(p) for p in outputs):
            found.append(AxisRule(outputs, inputs))
    missing = found[0].outputs if found else (Replicate(),) * num_outputs
    whole = tuple(None if p is None else Replicate() for p in missing)
    found.append(AxisRule(whole, (Replicate(),) * num_inputs))
    return found


def mesh_rules(
    op: OpOverload, args: list, kwargs: dict, inputs: list[ShardedMeta], num_outputs: int
) -> list[Choice]:
    """What PyTorch's rule for the whole mesh offers. Raises NoRuleError."""
    if op in GROUPING_DIMS and 0 in inputs[0].meta.shape:
        raise NoRuleError("the rule for views does not end where a size is 0")
    args = [
        _replicated(arg) if place in _WHOLE_BY_ASSUMPTION.get(op, ()) else arg
        for place, arg in enumerate(args)
    ]
    try:
        strategy = _MESH_RULES[op](_wrap(_schema(op, args, kwargs)))
    except Exception as error:
        raise NoRuleError(str(error)) from error
    if not isinstance(strategy, OpStrategy):
        raise NoRuleError(f"the rule gives a {type(strategy).__name__}")
    choices = []
    for spec in strategy.strategies:
        choice = _choice(spec, len(inputs), num_outputs)
        if choice is not None:
            choices.append(choice)
    return choices


def _replicated(value: object) -> object:
    if not isinstance(value, ShardedMeta):
        return value
    return replace(value, placements=(Replicate(),) * len(value.placements))


def _schema(op: OpOverload, args: list, kwargs: dict) -> OpSchema:
    return OpSchema(
        op, tuple(_spec(a) for a in args), {k: _spec(v) for k, v in kwargs.items()},
        schema_info=_SCHEMA_INFO.get(op),
    )


def _choice(spec: OpSpec, num_inputs: int, num_outputs: int) -> Choice | None:
    outputs = spec.output_specs
    if outputs is None or isinstance(outputs, DTensorSpec):
        outputs = (outputs,) * num_outputs
    wanted = spec.input_specs
    if wanted is None:
        wanted = (outputs[0],) * num_inputs
    wanted = [tuple(s.placements) for s in wanted if s is not None]
    given = [None if s is None else tuple(s.placements) for s in outputs]
    if len(wanted) != num_inputs or len(given) != num_outputs:
        return None
    for placements in (*wanted, *given):
        if placements is None:
            continue
        if not all(map(is_representable, placements)):
            return None
        if len({p.reduce_op for p in placements if isinstance(p, Partial)}) > 1:
            return None
    return Choice(wanted, given)


def _meta(meta: torch.Tensor) -> TensorMeta:
    return TensorMeta(meta.shape, meta.stride(), meta.dtype)


def _tuple_metas(args: list) -> tuple:
    return tuple(_metas(a) for a in args)


def _dict_metas(kwargs: dict) -> dict:
    return {k: _metas(v) for k, v in kwargs.items()}


def _metas(value: object) -> object:
    if isinstance(value, ShardedMeta):
        return _meta(value.meta)
    if isinstance(value, torch.Tensor):
        # One that is not distributed is the same number on every worker.
        return 0.0
    if isinstance(value, (list, tuple)) and any(
        isinstance(v, (ShardedMeta, torch.Tensor)) for v in value
    ):
        return tuple(_metas(v) for v in value)
    return list(value) if isinstance(value, tuple) else value


def _spec(value: object) -> object:
    if isinstance(value, ShardedMeta):
        return DTensorSpec(value.mesh, value.placements, tensor_meta=_meta(value.meta))
    if isinstance(value, torch.Tensor):
        return 0.0
    if isinstance(value, (list, tuple)):
        return [_spec(v) for v in value]
    return value
