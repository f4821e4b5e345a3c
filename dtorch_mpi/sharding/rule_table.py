"""Entering rules of our own, with those of an operator's in-place and out= forms."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.distributed.tensor import Partial

from dtorch_mpi.sharding.formulas import by_formula
from dtorch_mpi.sharding.op_sharding import ShardedMeta
from dtorch_mpi.sharding.operator_facts import facts_of
from dtorch_mpi.sharding.rules import OWN_RULES, OwnRule
from dtorch_mpi.sharding.selection import AxisRule

aten = torch.ops.aten
Target = OpOverload | OpOverloadPacket


def overloads_of(target: Target) -> list[OpOverload]:
    """The functional overloads of tensors; an overload stands for itself."""
    if isinstance(target, OpOverload):
        return [target]
    found = [getattr(target, name) for name in target.overloads()]
    return [
        op
        for op in found
        if op._schema.returns is not None
        and any("Tensor" in str(a.type) for a in op._schema.arguments)
        and not any(a.type.kind() == "StringType" and a.name == "dim" for a in op._schema.arguments)
        and not any(a.is_out for a in op._schema.arguments)
        and "Dimname" not in str(op._schema)
    ]


def register(
    *targets: Target, empty: bool = True, adds: bool = False, compares: bool = False
) -> Callable:
    """Decorator: a rule function for operators. The flags are OwnRule's."""

    def enter(function: Callable) -> Callable:
        for target in targets:
            for op in overloads_of(target):
                _enter(op, OwnRule(function, None, empty, adds, compares))
        return function

    return enter


def register_function(*targets: Target, compares: bool = False) -> Callable:
    """Decorator: a function that gives a call's formula."""

    def enter(function: Callable) -> Callable:
        for target in targets:
            for op in overloads_of(target):

                def rules(args, kwargs, outputs, op=op):
                    formula = function(args, kwargs, outputs)
                    return None if formula is None else by_formula(op, formula)(
                        args, kwargs, outputs
                    )

                _enter(op, OwnRule(rules, None, True, False, compares))
        return function

    return enter


def register_formulas(
    table: dict[Target, str], linear: str = "", addend: str = "", empty: bool = True
) -> None:
    """Rules for operators by their formulas; see formulas.by_formula."""
    for target, formula in table.items():
        for op in overloads_of(target):
            function = by_formula(op, formula, linear, addend)
            _enter(op, OwnRule(function, None, empty, bool(addend)))


def _enter(op: OpOverload, rule: OwnRule) -> None:
    OWN_RULES[op] = rule
    out = _out_form(op)
    if out is not None and out not in OWN_RULES:
        OWN_RULES[out] = replace(rule, rules=_with_out(op, rule.rules))
    packet = getattr(aten, op._schema.name.partition("::")[2] + "_", None)
    inplace = getattr(packet, op._overloadname, None) if packet is not None else None
    if inplace is not None and inplace not in OWN_RULES:
        OWN_RULES[inplace] = rule


def _out_form(op: OpOverload) -> OpOverload | None:
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments]
    packet = op._overloadpacket
    for name in packet.overloads():
        form = getattr(packet, name)
        given = [(a.name, str(a.type)) for a in form._schema.arguments if not a.is_out]
        if given == wanted and len(given) < len(form._schema.arguments):
            return form
    return None


def _with_out(op: OpOverload, function: Callable) -> Callable:
    """The rules of an out= form: what it writes to lies as the outputs do."""
    names = facts_of(op).names

    def rules(args, kwargs, outputs):
        own = {k: v for k, v in kwargs.items() if k in names}
        written = [isinstance(v, ShardedMeta) for k, v in kwargs.items() if k not in names]
        found = function(args, own, outputs)
        if found is None or not all(written) or len(written) != len(outputs):
            return None
        return [
            AxisRule(rule.outputs, (*rule.inputs, *rule.outputs))
            for rule in found
            if not any(isinstance(p, Partial) for p in rule.outputs)
        ]

    return rules
