"""Choosing, among rules for one operator, the one that moves the least.

A rule says, for one mesh axis, which placements of the inputs give which placements of the
outputs when every worker runs the operator on its own shards. Axes are decided one at a
time, so the work grows with their number and not with its power.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from dtorch_mpi.sharding.layout import gathers, has_empty_shard, move_cost
from dtorch_mpi.sharding.op_sharding import Placements, ShardedMeta

# How much dearer moving the others may be before an input gives up its Shard(0) where the
# output would keep it. A batch that stays in place keeps the rest of the model in place.
_KEEP_BATCH = 0.25
# What gathering costs besides its bytes, in bytes: memory that a shard was meant to save.
_GATHER_LATENCY = 32768.0
_MOST_COMBINATIONS = 4096


@dataclass(frozen=True)
class AxisRule:
    """Placements of the outputs (None for no tensor) and of the inputs on one axis."""

    outputs: tuple[Placement | None, ...]
    inputs: tuple[Placement, ...]


@dataclass(frozen=True)
class Call:
    """One operator call as rules see it."""

    mesh: DeviceMesh
    inputs: list[ShardedMeta]
    written: frozenset[int]  # which inputs the operator writes to
    # Output k is this input (None: it is a tensor of its own).
    returned: tuple[int | None, ...]
    outputs: tuple[torch.Tensor | None, ...]
    allows_empty: bool
    # Whether an input may become one worker's addend, as a bias that joins a sum does.
    may_add_once: bool = False


@dataclass(frozen=True)
class Choice:
    inputs: list[Placements]
    outputs: list[Placements | None]


Accepts = Callable[[list[Placements]], bool]


def select(call: Call, rules: list[AxisRule], accepts: Accepts | None = None) -> Choice | None:
    """The cheapest rule of each axis; where that gathers an input, what avoids it if that pays.

    None where an axis has no rule that is valid. ``accepts`` tells whether placements of the
    inputs suit together. It is asked axis by axis, with those not decided yet replicated.
    """
    choice = select_by_axis(call, rules, accepts)
    gathered = [] if choice is None else gathered_inputs(call, choice)
    if choice is not None and not gathered:
        return choice
    other = _select_without_gathering(call, rules, accepts)
    if choice is None or other is None:
        return other or choice
    if _gives_up_batch(call, choice, other, gathered):
        return choice
    limit = _total_cost(call, choice) + sum(
        _GATHER_LATENCY + _num_bytes(call.inputs[index].meta) for index in gathered
    )
    return other if _total_cost(call, other) <= limit else choice


def _gives_up_batch(call: Call, choice: Choice, other: Choice, gathered: list[int]) -> bool:
    """Whether ``other`` moves a batch, which stays where it is, to spare something smaller."""
    spared = max(call.inputs[index].meta.numel() for index in gathered)
    return any(
        given.meta.numel() > spared
        and any(
            before == stays == Shard(0) != after
            for before, stays, after in zip(given.placements, kept, moved, strict=True)
        )
        for given, kept, moved in zip(call.inputs, choice.inputs, other.inputs, strict=True)
    )


def gathered_inputs(call: Call, choice: Choice) -> list[int]:
    """The inputs of which some worker must hold more than it has."""
    return [
        index
        for index, (given, wanted) in enumerate(zip(call.inputs, choice.inputs, strict=True))
        if gathers(given.meta.shape, call.mesh.shape, given.placements, wanted)
    ]


def _select_without_gathering(
    call: Call, rules: list[AxisRule], accepts: Accepts | None
) -> Choice | None:
    """The cheapest of all combinations of rules that gathers no input."""
    placements = [list(given.placements) for given in call.inputs]
    valid = []
    for axis in range(call.mesh.ndim):
        now = tuple(p[axis] for p in placements)
        valid.append([r for r in rules if _is_valid(call, placements, axis, r, now, alone=False)])
    if math.prod(map(len, valid)) > _MOST_COMBINATIONS:
        return None
    best, best_cost = None, math.inf
    for chosen in itertools.product(*valid):
        if _mixes_reductions(chosen):
            continue
        choice = _joined(chosen)
        if accepts is not None and not accepts(choice.inputs):
            continue
        if any(
            not call.allows_empty
            and has_empty_shard(given.meta.shape, call.mesh.shape, wanted)
            for given, wanted in zip(call.inputs, choice.inputs, strict=True)
        ):
            continue
        cost = _total_cost(call, choice)
        if cost < best_cost and not gathered_inputs(call, choice):
            best, best_cost = choice, cost
    return best


def _joined(chosen: Sequence[AxisRule]) -> Choice:
    outputs = [
        None if kinds[0] is None else tuple(kinds)
        for kinds in zip(*(rule.outputs for rule in chosen), strict=True)
    ]
    return Choice(list(zip(*(rule.inputs for rule in chosen), strict=True)), outputs)


def _total_cost(call: Call, choice: Choice) -> float:
    """The bytes that a choice moves, and that reducing its outputs will move."""
    cost = choice_cost(call, choice)
    for made, placements in zip(call.outputs, choice.outputs, strict=True):
        if made is not None and placements is not None:
            for count, placement in zip(call.mesh.shape, placements, strict=True):
                if isinstance(placement, Partial):
                    cost += move_cost(placement, Shard(0), _num_bytes(made), count)
    return cost


def _num_bytes(meta: torch.Tensor) -> int:
    return meta.numel() * meta.element_size()


def select_by_axis(
    call: Call, rules: list[AxisRule], accepts: Accepts | None = None
) -> Choice | None:
    """The cheapest rule of each axis, or None where an axis has none that is valid."""
    chosen = []
    current = [list(given.placements) for given in call.inputs]
    for axis in range(call.mesh.ndim):
        rule = _select(call, current, axis, rules, accepts)
        if rule is None:
            return None
        chosen.append(rule)
        for placements, wanted in zip(current, rule.inputs, strict=True):
            placements[axis] = wanted
    if _mixes_reductions(chosen):
        return None
    return _joined(chosen)


def _select(
    call: Call,
    current: list[list[Placement]],
    axis: int,
    rules: list[AxisRule],
    accepts: Accepts | None,
) -> AxisRule | None:
    undecided = (Replicate(),) * (call.mesh.ndim - axis - 1)
    now = tuple(placements[axis] for placements in current)
    best, best_cost = None, (True, math.inf)
    for rule in rules:
        if not _is_valid(call, current, axis, rule, now):
            continue
        if accepts is not None and not accepts([
            (*placements[:axis], wanted, *undecided)
            for placements, wanted in zip(current, rule.inputs, strict=True)
        ]):
            continue
        if rule.inputs == now:
            return rule
        # What each worker can do alone goes first: the placements are the user's wish, and
        # moving a weight to save on an activation would defeat it.
        communicates = any(
            before != after and not isinstance(before, Replicate)
            for before, after in zip(now, rule.inputs, strict=True)
        )
        cost = communicates, _cost(call, current, axis, rule, now)
        if cost < best_cost:
            best, best_cost = rule, cost
    return best


def _is_valid(call, current, axis, rule, now, alone=True) -> bool:
    """alone: the other axes stay as they are in ``current``."""
    for index, (given, wanted) in enumerate(zip(call.inputs, rule.inputs, strict=True)):
        if index in call.written and wanted != now[index]:
            return False
        # Max and min keep their meaning under few operators, and occur seldom: reduce them.
        if isinstance(wanted, Partial):
            once = call.may_add_once and isinstance(now[index], Replicate)
            if wanted.reduce_op not in ("sum", "avg") or not (once or wanted == now[index]):
                return False
        if isinstance(wanted, Shard):
            if wanted.dim >= given.meta.ndim:
                return False
            if alone and (wanted != now[index] or not call.allows_empty):
                placements = [*current[index][:axis], wanted, *current[index][axis + 1 :]]
                if has_empty_shard(given.meta.shape, call.mesh.shape, placements):
                    return False
    return outputs_fit(call, rule.outputs) and all(
        source is None or output == rule.inputs[source]
        for source, output in zip(call.returned, rule.outputs, strict=True)
    )


def outputs_fit(call: Call, placements: tuple[Placement | None, ...]) -> bool:
    """Whether each output has the dim that it would be cut along, and numbers that can be reduced
    as it says: not all rules look."""
    return len(placements) == len(call.outputs) and all(
        made is not None and placement.dim < made.ndim if isinstance(placement, Shard)
        else not _reduces_complex(placement, made)
        for placement, made in zip(placements, call.outputs, strict=True)
    )


def _reduces_complex(placement: Placement | None, made: torch.Tensor | None) -> bool:
    # Collectives of complex numbers add.
    return (
        isinstance(placement, Partial) and placement.reduce_op not in ("sum", "avg")
        and made is not None and made.dtype.is_complex
    )


def _cost(call, current, axis, rule, now) -> float:
    count = call.mesh.shape[axis]
    cost = 0.0
    for given, placements, before, after in zip(
        call.inputs, current, now, rule.inputs, strict=True
    ):
        others = math.prod(
            n
            for other, (n, p) in enumerate(zip(call.mesh.shape, placements, strict=True))
            if other != axis and isinstance(p, Shard)
        )
        cost += move_cost(before, after, _num_bytes(given.meta) / others, count)
    stays_sharded = any(
        isinstance(before, Shard) and before == after
        for before, after in zip(now, rule.inputs, strict=True)
    )
    has_partial = any(isinstance(p, Partial) for p in now)
    for output, made in zip(rule.outputs, call.outputs, strict=True):
        num_bytes = 0 if made is None else _num_bytes(made)
        # What a layout saves now and costs its first reader is no saving: a sum that was
        # put off, or shards that no input had asked for.
        if isinstance(output, Partial) and not has_partial:
            cost += move_cost(output, Shard(0), num_bytes, count)
        elif isinstance(output, Shard) and not stays_sharded:
            cost += move_cost(output, Replicate(), num_bytes, count)
    return cost * _KEEP_BATCH if _keeps_batch(call, rule, now) else cost


def _keeps_batch(call, rule, now) -> bool:
    return bool(rule.outputs) and rule.outputs[0] == Shard(0) and any(
        before == after == Shard(0) and given.meta.shape[0] == call.outputs[0].shape[0]
        for given, before, after in zip(call.inputs, now, rule.inputs, strict=True)
    )


def _mixes_reductions(rules: list[AxisRule]) -> bool:
    """Whether some tensor would be reduced in two ways, whose order then matters."""
    tensors = list(zip(*((*rule.outputs, *rule.inputs) for rule in rules), strict=True))
    return any(len({p.reduce_op for p in t if isinstance(p, Partial)}) > 1 for t in tensors)


def choice_cost(call: Call, choice: Choice) -> float:
    """The bytes a choice for the whole mesh moves."""
    cost = 0.0
    for given, wanted in zip(call.inputs, choice.inputs, strict=True):
        for axis, (before, after) in enumerate(zip(given.placements, wanted, strict=True)):
            others = math.prod(
                n
                for other, n in enumerate(call.mesh.shape)
                if other != axis and isinstance(given.placements[other], Shard)
            )
            num_bytes = _num_bytes(given.meta) / others
            cost += move_cost(before, after, num_bytes, call.mesh.shape[axis])
    return cost
