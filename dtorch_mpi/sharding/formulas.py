"""Rules written as formulas, much as einsum's: which dims of an operator's tensors go together.

``"...ij, ...j_ -> ...i_"`` names the dims of each tensor input and of each tensor output. What a
letter stands for is cut on all its tensors together; one that lacks it is whole. Leading dims of
``...`` broadcast. ``_`` is a dim, and ``*`` any number of dims, that the operator needs whole.
Letters after ``|`` are summed over: outputs that lack them are sums over the workers. An output
after ``=`` is whole wherever it lacks the letter, and ``!`` stands for no output at all.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch._ops import OpOverload
from torch.distributed.tensor import Partial, Replicate, Shard

from dtorch_mpi.sharding.op_sharding import ShardedMeta
from dtorch_mpi.sharding.operator_facts import facts_of
from dtorch_mpi.sharding.selection import AxisRule

LINEAR = (Partial("sum"), Partial("avg"))
WHOLE = "_"
# The label of each dim of a tensor; "_" where it must be whole.
Labels = Sequence[object]


@lru_cache(None)
def _parsed(formula: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    formula, _, summed = formula.replace(" ", "").partition("|")
    before, after = formula.split("->")
    return tuple(before.split(",")), () if after == "!" else tuple(after.split(",")), summed


@lru_cache(None)
def _labels(term: str, ndim: int) -> tuple[object, ...]:
    """The labels of a tensor's dims; those of ``...`` are counted from its end."""
    for filler in ("...", "*"):
        head, found, tail = term.partition(filler)
        if found:
            free = ndim - len(head) - len(tail)
            filled = range(free, 0, -1) if filler == "..." else WHOLE * free
            return (*head, *filled, *tail)
    return tuple(term)


def labelled_rules(
    inputs: Sequence[tuple[torch.Tensor, Labels]],
    outputs: Sequence[tuple[torch.Tensor | None, Labels]],
    summed: Sequence[object] = (),
    addends: Sequence[int] = (),
    independent: Sequence[int] = (),
) -> list[AxisRule]:
    """A rule for each label.

    addends: inputs that one worker adds to what is summed. independent: outputs that are whole
    where they lack the label.
    """
    summed = tuple(summed)
    sizes: dict[object, int] = {}
    for meta, labels in inputs:
        for label, size in zip(labels, meta.shape, strict=True):
            if label != WHOLE and (size != 1 or label not in sizes):
                sizes[label] = size
    rules = []
    for label in sizes:
        made = []
        for index, (meta, labels) in enumerate(outputs):
            if meta is None:
                made.append(None)
            elif label in labels:
                made.append(Shard(labels.index(label)))
            elif label in summed:
                made.append(Partial("sum"))
            elif index in independent:
                made.append(Replicate())
            else:
                break
        if len(made) < len(outputs):
            continue
        wanted = []
        for index, (meta, labels) in enumerate(inputs):
            if label in labels and meta.shape[labels.index(label)] == sizes[label]:
                wanted.append(Shard(labels.index(label)))
            else:
                is_addend = index in addends and label in summed
                wanted.append(Partial("sum") if is_addend else Replicate())
        if any(isinstance(p, Shard) for p in wanted):
            rules.append(AxisRule(tuple(made), tuple(wanted)))
    return rules


def by_formula(op: OpOverload, formula: str, linear: str = "", addend: str = "") -> Callable:
    """The rule function of a formula.

    Terms stand for the tensor arguments in the schema's order and are left out with them; one
    for a list stands for each of its tensors. linear: names of arguments, with commas, in
    which the operator is linear together, the others being whole. addend: an argument that is
    added to what the formula sums over.
    """
    terms, made_terms, summed = _parsed(formula)
    independent = [k for k, term in enumerate(made_terms) if term.startswith("=")]
    made_terms = [term.removeprefix("=") for term in made_terms]
    tensors = [a.name for a in op._schema.arguments if "Tensor" in str(a.type)]
    term_of = dict(zip(tensors, terms, strict=False))
    names = facts_of(op).names
    linear_names = frozenset(linear.split(",")) - {""}

    def rules(args: list, kwargs: dict, outputs: list) -> list[AxisRule] | None:
        inputs, given_names = [], []
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            for item in value if isinstance(value, list) else (value,):
                if isinstance(item, ShardedMeta):
                    if name not in term_of:
                        return None
                    inputs.append((item.meta, _labels(term_of[name], item.meta.ndim)))
                    if len(inputs[-1][1]) != item.meta.ndim:
                        return None
                    given_names.append(name)
        made = []
        for output, term in zip(outputs, made_terms, strict=True):
            made.append((output, () if output is None else _labels(term, output.ndim)))
            if output is not None and len(made[-1][1]) != output.ndim:
                return None
        addends = [i for i, name in enumerate(given_names) if name == addend]
        found = labelled_rules(inputs, made, summed, addends, independent)
        if linear_names:
            for kind in LINEAR:
                wanted = tuple(kind if n in linear_names else Replicate() for n in given_names)
                if kind in wanted:
                    found.append(
                        AxisRule(tuple(None if o is None else kind for o in outputs), wanted)
                    )
        return found

    return rules


def broadcast_rules(args: list, kwargs: dict, outputs: list) -> list[AxisRule]:
    """An elementwise operator of any inputs: each dim of the result, on all that have it."""
    inputs = [
        (item.meta, range(item.meta.ndim, 0, -1))
        for value in (*args, *kwargs.values())
        for item in (value if isinstance(value, list) else (value,))
        if isinstance(item, ShardedMeta)
    ]
    return labelled_rules(
        inputs, [(o, () if o is None else range(o.ndim, 0, -1)) for o in outputs]
    )
