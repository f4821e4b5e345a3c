"""Ways to run one operator on shards: what its rules offer, for the mesh as a whole."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch._ops import OpOverload
from torch.distributed.tensor import Partial, Replicate, Shard

from dtorch_mpi.sharding import torch_rules
from dtorch_mpi.sharding.formulas import broadcast_rules
from dtorch_mpi.sharding.layout import has_empty_shard
from dtorch_mpi.sharding.op_sharding import Placements, ShardedMeta
from dtorch_mpi.sharding.own_rules import OWN_RULES, VIEW_OF
from dtorch_mpi.sharding.selection import (
    AxisRule,
    Call,
    Choice,
    choice_cost,
    gathered_inputs,
    outputs_fit,
    select,
)
from dtorch_mpi.sharding.torch_rules import NoRuleError

aten = torch.ops.aten

# On Partial these are right in place; what else comes from a whole-mesh rule is not known to be.
_LINEAR_IN_PLACE = {aten.zero_.default, aten.detach_.default}

# Layouts of a view's input that are tried.
_MOST_MOVES = 12

# Their means would weigh every shard the same.
_NO_AVERAGE = {aten.nll_loss_forward.default, aten.nll_loss2d_forward.default}


def ways_of(op, facts, args, kwargs, call: Call, outputs) -> Iterator[Callable]:
    """What to try in turn until one fits and gathers nothing."""
    yield lambda: _choose(op, args, kwargs, call, outputs)
    if facts.is_pointwise and op not in OWN_RULES and not _is_random(op):
        yield lambda: select(call, broadcast_rules(args, kwargs, outputs))
    if len(call.inputs) == 1 and not call.written and _rule_name(op) not in OWN_RULES:
        for placements in _moved_layouts(call):
            yield partial(_choose_as_moved, op, args, kwargs, call, placements, len(outputs))
    if call.allows_empty:
        yield lambda: _choose(op, args, kwargs, replace(call, allows_empty=False), outputs)
    is_empty = outputs and all(made is not None and made.numel() == 0 for made in outputs)
    if is_empty and not call.written and not op.is_view:
        yield lambda: _choose_nothing(call)


def _choose_nothing(call: Call) -> Choice:
    """Where there is nothing to make, every worker makes it of what it has."""
    whole = (Replicate(),) * call.mesh.ndim
    return Choice([given.placements for given in call.inputs], [whole] * len(call.outputs))


def _rule_name(op: OpOverload) -> OpOverload:
    """The operator whose rule serves."""
    return VIEW_OF.get(op, op)


def _moved_layouts(call: Call) -> list[Placements]:
    """Other ways to cut the only input that gather nothing, the nearest first."""
    given = call.inputs[0]
    options = [
        [p] if isinstance(p, Replicate) else [p, *map(Shard, range(given.meta.ndim))]
        for p in given.placements
    ]
    found = []
    for placements in itertools.product(*options):
        choice = Choice([placements], [])
        if placements != given.placements and not gathered_inputs(call, choice):
            found.append((choice_cost(call, choice), placements))
    return [placements for _, placements in sorted(found, key=lambda pair: pair[0])][:_MOST_MOVES]


def _choose_as_moved(op, args, kwargs, call, placements, num_outputs) -> Choice | None:
    """What a whole-mesh rule offers for the input as it will lie."""
    rule_op = _rule_name(op)
    if not torch_rules.has_mesh_rules(rule_op):
        return None
    given = [replace(call.inputs[0], placements=placements)]
    offers = torch_rules.mesh_rules(
        rule_op, with_inputs(args, given),
        with_inputs_named(args, kwargs, given), given, num_outputs,
    )
    for choice in offers:
        if choice.inputs[0] == placements and _is_valid_for_mesh(op, call, choice):
            return choice
    return None


def _is_random(op: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


def _choose(op, args, kwargs, call: Call, outputs) -> Choice | None:
    op = _rule_name(op)
    count = len(call.inputs)
    rules = OWN_RULES[op].rules(args, kwargs, outputs) if op in OWN_RULES else None
    if rules is not None:
        whole = tuple(None if o is None else Replicate() for o in outputs)
        return select(call, [*rules, AxisRule(whole, (Replicate(),) * count)])
    if torch_rules.has_axis_rules(op):
        return select(
            call, torch_rules.axis_rules(op, args, kwargs, count),
            torch_rules.axes_filter(op, args, kwargs, call.inputs),
        )
    if torch_rules.has_mesh_rules(op):
        return _choose_for_mesh(op, args, kwargs, call, len(outputs))
    return None


def _choose_for_mesh(op, args, kwargs, call: Call, num_outputs: int) -> Choice | None:
    """A whole-mesh rule's best offer, with as few axes replicated beforehand as it needs."""
    error = None
    mesh = call.mesh
    for number in range(mesh.ndim + 1):
        best, best_cost = None, (float("inf"), 0)
        for axes in itertools.combinations(range(mesh.ndim), number):
            given = [_replicated_on(i, axes) for i in call.inputs]
            try:
                offers = torch_rules.mesh_rules(
                    op, with_inputs(args, given), with_inputs_named(args, kwargs, given),
                    given, num_outputs,
                )
            except NoRuleError as refused:
                error = refused
                continue
            for choice in offers:
                if not _is_valid_for_mesh(op, call, choice):
                    continue
                # Of equals, the one whose outputs lie most like their inputs: a new tensor
                # is mostly filled from the one it was made after.
                cost = choice_cost(call, choice), _num_replicated(choice)
                if cost < best_cost:
                    best, best_cost = choice, cost
        if best is not None:
            return best
    if error is not None:
        raise error
    return None


def _num_replicated(choice: Choice) -> int:
    return sum(isinstance(p, Replicate) for placements in choice.outputs for p in placements or ())


def _replicated_on(given: ShardedMeta, axes: tuple[int, ...]) -> ShardedMeta:
    if not axes:
        return given
    placements = tuple(
        Replicate() if axis in axes else p for axis, p in enumerate(given.placements)
    )
    return replace(given, placements=placements)


def with_inputs(args: list, given: list[ShardedMeta]) -> list:
    supply = iter(given)

    def swap(value):
        if isinstance(value, ShardedMeta):
            return next(supply)
        return [swap(v) for v in value] if isinstance(value, list) else value

    return [swap(a) for a in args]


def with_inputs_named(args: list, kwargs: dict, given: list[ShardedMeta]) -> dict:
    values = with_inputs([*args, *kwargs.values()], given)
    return dict(zip(kwargs, values[len(args) :], strict=True))


def _is_valid_for_mesh(op, call: Call, choice: Choice) -> bool:
    if not all(outputs_fit(call, kinds) for kinds in _by_axis(choice.outputs, call.mesh.ndim)):
        return False
    if any(
        isinstance(p, Shard) and p.dim >= given.meta.ndim
        for given, wanted in zip(call.inputs, choice.inputs, strict=True)
        for p in wanted
    ):
        return False
    for index in call.written:
        placements = call.inputs[index].placements
        if choice.inputs[index] != placements:
            return False
        is_partial = any(isinstance(p, Partial) for p in placements)
        if is_partial and op not in _LINEAR_IN_PLACE:
            return False
    for source, output in zip(call.returned, choice.outputs, strict=True):
        if source is not None and output != choice.inputs[source]:
            return False
    if not op.is_view and any(
        isinstance(p, Partial) and p.reduce_op not in ("sum", "avg")
        for wanted in choice.inputs
        for p in wanted
    ):
        return False
    if op in _NO_AVERAGE and any(
        isinstance(p, Partial) and p.reduce_op == "avg" for p in choice.outputs[0]
    ):
        return False
    return call.allows_empty or not any(
        has_empty_shard(given.meta.shape, call.mesh.shape, wanted)
        for given, wanted in zip(call.inputs, choice.inputs, strict=True)
    )


def _by_axis(outputs: list[Placements | None], ndim: int) -> list[tuple]:
    return [tuple(None if p is None else p[axis] for p in outputs) for axis in range(ndim)]
