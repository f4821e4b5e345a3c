"""Cuts a fused kernel where ATen calls MKL's vector functions: these take arrays, not vectors.

Between them lie stages that inductor compiles. All run over one block of elements after the other,
and what passes from one to the next stays in the cache.
"""

from functools import partial

import torch
from expressions import evaluate
from verification import called

# As ATen's vml.h has them.
VECTOR_FUNCTIONS = {
    "aten::exp": "Exp", "aten::log": "Ln", "aten::log2": "Log2", "aten::log10": "Log10",
    "aten::sqrt": "Sqrt", "aten::sin": "Sin", "aten::cos": "Cos", "aten::tan": "Tan",
    "aten::asin": "Asin", "aten::acos": "Acos", "aten::atan": "Atan", "aten::tanh": "Tanh",
    "aten::erf": "Erf", "aten::erfc": "Erfc",
}  # fmt: skip


def _are_vector_functions(spec):
    """By node, whether it is one of MKL's; these know no bfloat16."""
    has_some = spec["computes_in"] != "bfloat16" and torch.backends.mkl.is_available()
    return [has_some and name in VECTOR_FUNCTIONS for name, _ in spec["nodes"]]


def dtypes_of_nodes(spec):
    """The dtype of each node's result, by name."""
    inputs = [torch.ones(() if extent == "one" else (2,), dtype=getattr(torch, dtype))
              for dtype, extent in spec["inputs"]]  # fmt: skip
    numbers = [1 for _ in spec["numbers"]]
    everything = spec | {"outputs": range(len(spec["nodes"]))}
    made = evaluate(everything, inputs, numbers, partial(called, sizes=(2,)))
    return [str(tensor.dtype).removeprefix("torch.") for tensor in made]


def _levels(spec):
    """How many of MKL's functions lie before each node, on the way with the most."""
    levels, vector = [], _are_vector_functions(spec)
    for _, arguments in spec["nodes"]:
        before = [0]
        for argument in arguments:
            if isinstance(argument, list) and argument[0] == "node":
                before.append(levels[argument[1]] + vector[argument[1]])
        levels.append(max(before))
    return levels


class Stage:
    """spec: of the part that inductor compiles, None if there is none.

    reads, writes: where its inputs, numbers, outputs are: ["input", i], ["number", i],
    ["node", i]. functions: [(node, where it reads)], MKL's, called after it.
    """

    def __init__(self, spec, reads, writes, functions):
        self.spec, self.reads, self.writes = spec, reads, writes
        self.functions = functions


def split(spec):
    """The stages of a kernel, in order."""
    levels = _levels(spec)
    vector = _are_vector_functions(spec)
    dtypes = dtypes_of_nodes(spec)
    needed = set(spec["outputs"])  # outside of the stage that makes it
    for node, (_, arguments) in enumerate(spec["nodes"]):
        for argument in arguments:
            if isinstance(argument, list) and argument[0] == "node" and (
                vector[node] or vector[argument[1]] or levels[argument[1]] != levels[node]
            ):
                needed.add(argument[1])
    _check_writes(spec, levels)
    stages = []
    for level in range(max(levels) + 1):
        own = [n for n in range(len(levels)) if levels[n] == level and not vector[n]]
        functions = [(n, spec["nodes"][n][1][0]) for n in range(len(levels))
                     if levels[n] == level and vector[n]]  # fmt: skip
        stages.append(_stage(spec, own, [n for n in own if n in needed], functions, dtypes))
    return stages


def _check_writes(spec, levels):
    """Raise ValueError for an input that is read after it was written over."""
    for output, target in spec["writes"]:
        node = spec["outputs"][output]
        for other, (_, arguments) in enumerate(spec["nodes"]):
            if ["input", target] in arguments and levels[other] > levels[node]:
                raise ValueError(f"an input is written before its last use: {spec}")


def _in_block(described):
    """An input as a stage has it: one that is spread comes with an element for each."""
    dtype, extent = described
    return [dtype, "whole" if extent == "spread" else extent]


def _stage(spec, own, writes, functions, dtypes):
    if not own:
        return Stage(None, [], [], functions)
    places = {node: at for at, node in enumerate(own)}
    inputs, numbers = {}, {}  # where it is -> which of the stage's it is

    def of(argument):
        if not isinstance(argument, list):
            return argument
        kind, at = argument
        if kind == "node" and at in places:
            return ["node", places[at]]
        if kind == "number":
            return ["number", numbers.setdefault(("number", at), len(numbers))]
        return ["input", inputs.setdefault((kind, at), len(inputs))]

    nodes = [[spec["nodes"][node][0], list(map(of, spec["nodes"][node][1]))] for node in own]
    part = {
        "inputs": [_in_block(spec["inputs"][at]) if kind == "input" else [dtypes[at], "whole"]
                   for kind, at in inputs],
        "numbers": [spec["numbers"][at] for _, at in numbers],
        "nodes": nodes,
        "outputs": [places[node] for node in writes],
        "computes_in": spec["computes_in"],
        "writes": [
            [writes.index(spec["outputs"][output]), inputs["input", target]]
            for output, target in spec["writes"]
            if spec["outputs"][output] in writes and ("input", target) in inputs
        ],
    }  # fmt: skip
    reads = [list(place) for place in (*inputs, *numbers)]
    return Stage(part, reads, [["node", node] for node in writes], functions)
