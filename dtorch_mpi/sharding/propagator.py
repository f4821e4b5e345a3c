"""How each operator runs on shards: the rules, the checks on them, and the caches."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch._ops import OpOverload
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard

from dtorch_mpi.sharding import torch_rules
from dtorch_mpi.sharding.choices import ways_of, with_inputs, with_inputs_named
from dtorch_mpi.sharding.decision_keys import decision_key
from dtorch_mpi.sharding.decompositions import decomposition_of
from dtorch_mpi.sharding.decompositions_steps import steps_of
from dtorch_mpi.sharding.fallback import replicate_everything
from dtorch_mpi.sharding.lists import propagate_list
from dtorch_mpi.sharding.local_check import check_local_shapes
from dtorch_mpi.sharding.misfit import misfit
from dtorch_mpi.sharding.op_sharding import OpSharding, Placements, ShardedMeta
from dtorch_mpi.sharding.operator_facts import OperatorFacts, facts_of
from dtorch_mpi.sharding.own_rules import OWN_RULES
from dtorch_mpi.sharding.selection import (
    Call,
    Choice,
    gathered_inputs,
)
from dtorch_mpi.sharding.torch_rules import NoRuleError

aten = torch.ops.aten

# By decision_key. A decision that moves data depends on how much, so those are a second table,
# by the magnitudes of the inputs too.
_cache: dict[tuple, OpSharding] = {}
_moving: dict[tuple, dict[tuple, OpSharding]] = {}
_num_decisions = 0

# Operators without a rule of our own, or whose rule does not say so, that give the right result on
# a shard without elements.
_EMPTY_SAFE = {
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default,
    aten.embedding.default, aten.embedding_dense_backward.default,
    aten.native_layer_norm.default, aten.native_layer_norm_backward.default,
    aten.sum.default, aten.sum.dim_IntList, aten.cat.default, aten.stack.default,
    aten.clone.default, aten.zeros_like.default, aten.ones_like.default,
    aten.empty_like.default, aten.full_like.default, aten.new_zeros.default,
    aten.new_empty.default, aten.new_empty_strided.default, aten.zero_.default,
    aten._unsafe_view.default, aten.slice_backward.default, aten.native_dropout_backward.default,
    aten.select_backward.default, aten.linalg__powsum.default,
}

_WITH_ADDEND = {aten.addmm.default, aten.baddbmm.default}


def propagate(
    op: OpOverload,
    args: tuple,
    kwargs: dict,
    outputs: list[torch.Tensor | None],
    mesh: DeviceMesh | None = None,
) -> OpSharding:
    """Decide how the workers run ``op``.

    Distributed tensors in ``args`` and ``kwargs``, in lists too, are :class:`ShardedMeta`;
    everything else is as the operator takes it. ``outputs`` are the global results on device
    meta, lists flattened. ``mesh`` is needed only where no input is distributed.

    Raises ValueError where inputs are on different meshes, or where there is no mesh.
    """
    facts = facts_of(op)
    args, kwargs = facts.normalize(args, kwargs)
    args = [list(a) if isinstance(a, (tuple, torch.Size)) else a for a in args]
    inputs, positions = _flatten(facts, args, kwargs)
    mesh = _common_mesh(op, inputs, mesh)
    if all(isinstance(p, Replicate) for given in inputs for p in given.placements):
        whole = (Replicate(),) * mesh.ndim
        return OpSharding([whole] * len(inputs), [None if o is None else whole for o in outputs])
    if facts.answers_on_client:  # jvp asks whether sizes are the same
        return OpSharding([given.placements for given in inputs], [])
    if facts.is_list:
        return _propagate_list(op, facts, args, kwargs, inputs, positions, outputs, mesh)

    near = decision_key(op, facts, args, kwargs, outputs, mesh, near=True)
    known = _cache.get(near)
    if known is not None:
        return known
    key = decision_key(op, facts, args, kwargs, outputs, mesh, near=False)
    known = _moving.get(key)
    magnitudes = _magnitudes(inputs)
    if known is not None and magnitudes in known:
        return known[magnitudes]
    global _num_decisions
    _num_decisions += 1
    result = _decide(op, facts, args, kwargs, inputs, positions, outputs, mesh)
    if all(w == given.placements for w, given in zip(result.inputs, inputs, strict=True)):
        _cache[near] = result
    else:
        _moving.setdefault(key, {})[magnitudes] = result
    return result


def assume_same_decision(
    op: OpOverload,
    seen: tuple[tuple, dict],
    symbolic: tuple[tuple, dict],
    outputs: list[torch.Tensor],
    mesh: DeviceMesh,
) -> bool:
    """Whether the decision on a call holds for symbolic sizes, under conditions put on them.

    ``seen`` and ``symbolic`` are the arguments of one call, with its sizes and with symbols for
    some. Asking a symbol is what puts a condition on it: those under which the decision's key is
    what it was are enough.
    """
    facts = facts_of(op)
    normalized, found = [], []
    for args, kwargs in (seen, symbolic):
        args, kwargs = facts.normalize(args, kwargs)
        args = [list(a) if isinstance(a, (tuple, torch.Size)) else a for a in args]
        normalized.append((args, kwargs))
        found.append(_flatten(facts, args, kwargs)[0])
    inputs = found[0]
    if all(isinstance(p, Replicate) for given in inputs for p in given.placements):
        return True
    if facts.is_list:
        return False

    def key(index, near):
        args, kwargs = normalized[index]
        return decision_key(op, facts, args, kwargs, outputs, mesh, near=near)

    def agrees(near):
        # Working out a key of symbols puts conditions on them too: only where it is needed.
        return key(0, near) == _settled(key(1, near))

    if key(0, near=True) in _cache:
        return agrees(near=True)
    decision = _moving.get(key(0, near=False), {}).get(_magnitudes(inputs))
    if decision is None:
        return False
    if not _is_cheap(inputs, decision) and not all(
        (numel := given.meta.numel()) >= low and numel < high
        for given, (low, high) in zip(found[1], map(_magnitude_range, inputs), strict=True)
    ):
        return False
    # Where nothing is cut that was whole, the sizes of what is whole matter to costs only.
    return agrees(near=not _cuts_anew(inputs, decision))


def _settled(key: object) -> object:
    """The key with its comparisons of symbols settled, each by a condition."""
    if isinstance(key, tuple):
        return tuple(map(_settled, key))
    return bool(key) if isinstance(key, torch.SymBool) else key


# Below this, as a number of bits, a collective costs the same whatever it moves.
_SMALLEST_MAGNITUDE = 9


def _magnitudes(inputs: list[ShardedMeta]) -> tuple[int, ...]:
    return tuple(max(given.meta.numel().bit_length(), _SMALLEST_MAGNITUDE) for given in inputs)


def _magnitude_range(given: ShardedMeta) -> tuple[int, int]:
    (bits,) = _magnitudes([given])
    return 0 if bits == _SMALLEST_MAGNITUDE else 2 ** (bits - 1), 2**bits


def _changes(inputs: list[ShardedMeta], decision: OpSharding) -> Iterator[tuple]:
    for given, wanted in zip(inputs, decision.inputs, strict=True):
        for before, after in zip(given.placements, wanted, strict=True):
            if before != after:
                yield before, after


def _is_cheap(inputs: list[ShardedMeta], decision: OpSharding) -> bool:
    """Whether the move is one for any size: sums are reduced, and what is whole moves nowhere."""
    return all(
        isinstance(before, Replicate)
        or isinstance(before, Partial) and isinstance(after, Replicate)
        for before, after in _changes(inputs, decision)
    )


def _cuts_anew(inputs: list[ShardedMeta], decision: OpSharding) -> bool:
    return any(isinstance(after, Shard) for _, after in _changes(inputs, decision))


def num_decisions() -> int:
    """How many were made since the start, rather than found in the cache."""
    return _num_decisions


def clear_cache() -> None:
    """Forget all decisions."""
    _cache.clear()
    _moving.clear()


def _flatten(
    facts: OperatorFacts, args: list, kwargs: dict
) -> tuple[list[ShardedMeta], list[int]]:
    """The distributed inputs, and the schema position each stands at."""
    inputs, positions = [], []
    named = [(facts.names.index(name), value) for name, value in kwargs.items()]
    for position, value in (*enumerate(args), *named):
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, ShardedMeta):
                inputs.append(item)
                positions.append(position)
    return inputs, positions


def _common_mesh(
    op: OpOverload, inputs: list[ShardedMeta], mesh: DeviceMesh | None
) -> DeviceMesh:
    for given in inputs:
        if mesh is None:
            mesh = given.mesh
        elif given.mesh is not mesh and given.mesh != mesh:
            raise ValueError(
                f"{op}: expected all inputs on one mesh, got {mesh} and {given.mesh}. "
                f"Redistribute one of them to the other's mesh first."
            )
    if mesh is None:
        raise ValueError(f"{op} has no distributed input: say which mesh it runs on")
    return mesh


def _propagate_list(op, facts, args, kwargs, inputs, positions, outputs, mesh) -> OpSharding:
    def element(element_op, element_args, element_kwargs, element_outputs):
        return propagate(element_op, element_args, element_kwargs, element_outputs, mesh)

    result = propagate_list(op, args, kwargs, outputs, element)
    if result is None:
        written = frozenset(i for i, p in enumerate(positions) if p in facts.written)
        return replicate_everything(mesh, inputs, outputs, written, "no rule for the list")
    if result.fallback:
        result = replace(result, decomposition=decomposition_of(op, args, inputs))
    return result


def _decide(op, facts, args, kwargs, inputs, positions, outputs, mesh) -> OpSharding:
    written = frozenset(index for index, p in enumerate(positions) if p in facts.written)
    own = OWN_RULES.get(op)
    call = Call(
        mesh, inputs, written,
        _returned_inputs(facts, positions, outputs),
        tuple(outputs),
        own is not None and own.empty or torch_rules.allows_uneven(op) or op in _EMPTY_SAFE
        or op.is_view or facts.is_pointwise,
        op in _WITH_ADDEND or own is not None and own.adds,
    )
    best, reason = None, "no rule"
    for choose in ways_of(op, facts, args, kwargs, call, outputs):
        try:
            choice = choose()
        except NoRuleError as error:
            reason = str(error)
            continue
        if choice is None:
            continue
        result = _described(facts, call, choice)
        wrong = misfit(op, args, call, choice) or check_local_shapes(
            op, facts, args, kwargs, inputs, result, outputs, mesh.shape
        )
        if wrong is not None:
            reason = wrong
        elif not result.fallback:
            # Shards that would change places may well be reduced where they are.
            if _moves_shards(inputs, result.inputs):
                result = replace(result, decomposition=decomposition_of(op, args, inputs))
            return result
        else:
            best = best or result
    if written and any(isinstance(p, Partial) for given in inputs for p in given.placements):
        reduced = _decide_reduced(
            op, facts, args, kwargs, inputs, positions, outputs, mesh, written
        )
        if not reduced.fallback:
            return reduced
    best = best or replicate_everything(mesh, inputs, outputs, written, reason)
    decomposition = decomposition_of(op, args, inputs)
    if decomposition is None and best.fallback:
        decomposition = steps_of(op, args)
    return replace(best, decomposition=decomposition)


def _decide_reduced(
    op, facts, args, kwargs, inputs, positions, outputs, mesh, written
) -> OpSharding:
    """Reduce all sums first; what is written to is a sum again after."""
    given = [
        replace(i, placements=tuple(Replicate() if isinstance(p, Partial) else p
                                    for p in i.placements))
        for i in inputs
    ]
    args, kwargs = with_inputs(args, given), with_inputs_named(args, kwargs, given)
    result = _decide(op, facts, args, kwargs, given, positions, outputs, mesh)
    restore = {
        index: inputs[index].placements
        for index in sorted(written)
        if inputs[index].placements != result.inputs[index]
    }
    return replace(result, restore=restore, decomposition=None)


def _moves_shards(inputs: list[ShardedMeta], wanted: list[Placements]) -> bool:
    return any(
        isinstance(before, Shard) and before != after
        for given, placements in zip(inputs, wanted, strict=True)
        for before, after in zip(given.placements, placements, strict=True)
    )


def _returned_inputs(facts, positions, outputs) -> tuple[int | None, ...]:
    if len(facts.returned) != len(outputs):
        return (None,) * len(outputs)
    return tuple(None if p is None else positions.index(p) for p in facts.returned)


def _described(facts: OperatorFacts, call: Call, choice: Choice) -> OpSharding:
    gathered = gathered_inputs(call, choice)
    is_sharded = bool(choice.outputs) and any(isinstance(p, Shard) for p in choice.outputs[0] or ())
    return OpSharding(
        inputs=choice.inputs,
        outputs=choice.outputs,
        local_sizes=(
            {facts.size_position: 0} if is_sharded and facts.size_position is not None else {}
        ),
        local_strides=(
            {facts.stride_position: 0} if is_sharded and facts.stride_position is not None else {}
        ),
        fallback=bool(gathered),
        reason=f"gathers input {gathered[0]}" if gathered else "",
    )
