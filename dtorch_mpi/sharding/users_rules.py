"""Sharding rules of users' own operators."""

import re
import sys
from typing import Any

import torch

from .. import _core


def register_sharding(op: Any, formula: str) -> None:
    """Say how a user's operator runs on shards.

    op: the operator, such as torch.ops.my.op, or what `torch.library.custom_op` returned.
    formula: one term for each tensor argument (for a list: for each of its tensors) and result;
    a letter is a dim that may be cut, on all tensors that have it together; `_` a dim, and `*` any
    number of dims, that stay whole; `...` any leading dims. "bh__, bh__, bh__ -> bh__": batch and
    heads of an attention. "ab*, ab* -> ab*": elementwise over dims 0 and 1.

    An operator that has none gets whole arguments on each worker. The meta function (register_fake)
    is called with the sizes of workers' parts too.

    Raises ValueError for a formula that does not fit the operator's schema, TypeError for what is
    no operator.
    """
    op = getattr(op, "_opoverload", op)
    op = getattr(op, "default", op) if isinstance(op, torch._ops.OpOverloadPacket) else op
    if not isinstance(op, torch._ops.OpOverload):
        raise TypeError(f"expected an operator, as torch.ops.my.op, got {op!r:.80}")
    _check(op, formula)
    from .formulas import by_formula
    from .rules import OWN_RULES, OwnRule

    OWN_RULES[op] = OwnRule(by_formula(op, formula))
    _core.forget_operator(op._name)
    propagator = sys.modules.get("dtorch_mpi.sharding.propagator")
    if propagator is not None:
        propagator.clear_cache()


def _check(op, formula):
    term = r"=?(?:[A-Za-z_]|\.\.\.|\*)*"
    terms = rf"{term}(?:,{term})*"
    parts = re.fullmatch(rf"({terms})->(!|{terms})(?:\|[A-Za-z]+)?", formula.replace(" ", ""))
    if parts is None:
        raise ValueError(
            f"the sharding {formula!r} of {op._name}: expected terms as in 'ab*, ab* -> ab*'"
        )
    if any("[]" in str(r.type) or "List" in str(r.type) for r in op._schema.returns):
        raise ValueError(f"{op._name} returns a list: such an operator can't have a sharding")
    given = sum("Tensor" in str(a.type) for a in op._schema.arguments)
    made = len(op._schema.returns)
    found = parts[1].count(",") + 1, 0 if parts[2] == "!" else parts[2].count(",") + 1
    if found != (given, made):
        raise ValueError(
            f"the sharding {formula!r} of {op._name} has {found[0]} and {found[1]} terms: expected "
            f"{given} for its tensor arguments and {made or '! (none)'} for its results"
        )
    for text in (parts[1], parts[2]):
        for single in text.split(","):
            if len(re.findall(r"\.\.\.|\*", single)) > 1:
                raise ValueError(
                    f"the sharding {formula!r} of {op._name}: one ... or * a term, got {single!r}"
                )
