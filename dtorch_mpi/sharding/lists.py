"""Operators over lists of tensors, decided one element at a time."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch
from torch._ops import OpOverload
from torch.distributed.tensor import Partial, Replicate

from dtorch_mpi.sharding.op_sharding import OpSharding, ShardedMeta
from dtorch_mpi.sharding.operator_facts import facts_of

aten = torch.ops.aten
_ARITHMETIC = {"add", "sub", "mul", "div"}
# PyTorch's list operators clamp too; maximum has no form in place.
_NAMES = {"norm": "linalg_vector_norm", "powsum": "linalg__powsum",
          "maximum": "clamp_min", "minimum": "clamp_max"}
_CLAMPS = {"List": "Tensor", "Scalar": "default", "ScalarList": "default"}
_OVERLOADS = {
    "addcmul": dict.fromkeys(("Scalar", "ScalarList", "Tensor"), "default"),
    "addcdiv": dict.fromkeys(("Scalar", "ScalarList", "Tensor"), "default"),
    "pow": {"List": "Tensor_Tensor", "Scalar": "Tensor_Scalar", "ScalarList": "Tensor_Scalar",
            "ScalarAndTensor": "Scalar"},
    "pow_": {"List": "Tensor", "Scalar": "Scalar", "ScalarList": "Scalar"},
    **dict.fromkeys(("clamp_min", "clamp_max", "maximum", "minimum"), _CLAMPS),
    "lerp": {"List": "Tensor", "Scalar": "Scalar", "ScalarList": "Scalar"},
    "norm": {"Scalar": "default"},
    "powsum": {"Scalar": "default"},
}


@lru_cache(None)
def element_operator(op: OpOverload) -> OpOverload | None:
    """The operator that ``op`` applies to each element, or None if there is no such one."""
    name = op._schema.name.partition("::")[2]
    if not name.startswith("_foreach_"):
        return None
    name = name.removeprefix("_foreach_")
    base = name.rstrip("_")
    suffix = name[len(base) :]
    overloads = _OVERLOADS.get(name, _OVERLOADS.get(base, {}))
    wanted = overloads.get(op._overloadname, op._overloadname)
    if base in _ARITHMETIC:
        wanted = "Tensor"  # takes a plain number too
    packet = getattr(aten, _NAMES.get(base, base) + suffix, None)
    return getattr(packet, wanted, None) if packet is not None else None


def by_elements(name: str, overload: str) -> Callable:
    """The operator ``name`` in place, as a call of its own for each element in turn.

    What PyTorch's loop writes to one element it reads in the next, if they share memory. Lists
    whose elements are brought to other placements do not share it any more.
    """
    op = getattr(getattr(aten, name.partition("::")[2]), overload)
    element = element_operator(op)

    def run(*args, **kwargs):
        for index in range(len(args[0])):
            picked = [value[index] if isinstance(value, list) else value for value in args]
            named = dict(kwargs)
            if _takes_value_by_keyword(element, picked):
                value = picked.pop()
                named["value"] = value[index].item() if isinstance(value, torch.Tensor) else value
            element(*picked, **named)

    return run


def propagate_list(
    op: OpOverload, args: list, kwargs: dict, outputs: list, propagate: Callable
) -> OpSharding | None:
    """Decide each element by the single-tensor operator; None where that does not serve."""
    element = element_operator(op)
    is_fused = op._schema.name.startswith("aten::_fused_")
    if element is None and not is_fused:
        return None
    count = len(args[0])
    if any(isinstance(a, list) and a and len(a) != count for a in args):
        return None

    is_inplace = bool(facts_of(op).written)
    decisions = []
    for index in range(count):
        picked = [_pick(a, index) for a in args]
        if is_fused:
            decision = _fused_update(picked, kwargs)
        else:
            named = {k: _pick(v, index) for k, v in kwargs.items()}
            _move_value(element, picked, named)
            made = [args[0][index].meta] if is_inplace else [outputs[index]]
            decision = propagate(element, tuple(picked), named, made)
        decisions.append(decision)
    return _join(args, kwargs, decisions, is_inplace)


def _pick(value: object, index: int) -> object:
    if isinstance(value, list):
        return value[index] if value else None
    if isinstance(value, ShardedMeta):
        # One tensor for all elements, such as a scale, is whole on every worker.
        return replace(value, placements=(Replicate(),) * value.mesh.ndim)
    return value


def _takes_value_by_keyword(element: OpOverload, picked: list) -> bool:
    # addcmul and addcdiv: their list forms take it by position.
    return element._schema.name.split("::")[1].startswith("addc") and len(picked) == 4


def _move_value(element: OpOverload, picked: list, named: dict) -> None:
    if _takes_value_by_keyword(element, picked):
        value = picked.pop()
        named["value"] = 1.0 if isinstance(value, (torch.Tensor, ShardedMeta)) else value


def _fused_update(picked: list, kwargs: dict) -> OpSharding:
    """A fused optimizer's step: all of a parameter's state lies as the parameter does."""
    parameter = picked[0]
    whole = (Replicate(),) * parameter.mesh.ndim
    target = parameter.placements
    if any(isinstance(p, Partial) for p in target):
        target = whole
    given = [v for v in (*picked, *kwargs.values()) if isinstance(v, ShardedMeta)]
    like_parameter = [v.meta.shape == parameter.meta.shape and v.meta.ndim > 0 for v in given]
    wanted = [target if same else whole for same in like_parameter]
    restore = {
        index: v.placements
        for index, (v, w) in enumerate(zip(given, wanted, strict=True))
        if v.placements != w and index != 1  # a gradient is only scaled, and read no more
    }
    return OpSharding(inputs=wanted, outputs=[], restore=restore)


def _join(
    args: list, kwargs: dict, decisions: list[OpSharding], is_inplace: bool
) -> OpSharding:
    """The elements' decisions in the order of the list operator's own inputs."""
    inputs, restore, seen = [], {}, [0] * len(decisions)

    def take(element: int) -> None:
        decision, position = decisions[element], seen[element]
        if position in decision.restore:
            restore[len(inputs)] = decision.restore[position]
        inputs.append(decision.inputs[position])
        seen[element] += 1

    for value in (*args, *kwargs.values()):
        if isinstance(value, list):
            for element, item in enumerate(value):
                if isinstance(item, ShardedMeta):
                    take(element)
        elif isinstance(value, ShardedMeta):
            inputs.append((Replicate(),) * value.mesh.ndim)
            for element in range(len(decisions)):
                seen[element] += 1
    outputs = [] if is_inplace else [d.outputs[0] for d in decisions]
    reasons = [d.reason for d in decisions if d.fallback]
    return OpSharding(
        inputs=inputs, outputs=outputs, restore=restore, fallback=bool(reasons),
        reason=reasons[0] if reasons else "",
    )
