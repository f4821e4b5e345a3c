"""The description of a fused kernel: plain data, by which it is known, cached and compiled.

    {"inputs": [[dtype, extent], ...], "numbers": [dtype, ...],
     "nodes": [[operator, arguments], ...], "outputs": [node, ...], "computes_in": dtype,
     "dtypes": [dtype of an output, ...], "writes": [[output, input], ...]}

extent: "whole" where the input has an element for each of the outputs', "one" where it has one for
all, "spread" where it is broadcast to their sizes. A kernel that reduces rows (of the last dims)
names its outputs' "extents" too: "column" where there is one element for each row, "reduced" where
that has fewer dims; an input may be a "column" or a "row", one element for each column.

An argument is ["input", i], ["number", i], ["node", i], or None for one left out; of aten::full the
number, its dtype, and an input of the same size if it has one. computes_in: the one floating dtype
in it, or None. writes: outputs that are written over an input. Nothing in it
depends on sizes or on the numbers' values: one kernel serves every shape and every worker's part.
"""

import hashlib
import json

import torch

# In the order of src/worker/fused.h.
EXTENTS = ("whole", "one", "spread", "row", "column", "reduced")


def packed(spec):
    """The same text for equal descriptions."""
    return json.dumps(spec, separators=(",", ":"), sort_keys=True)


def number_of(text):
    """By which workers know the kernel of a packed description."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def dtypes_of(names):
    return [getattr(torch, name) for name in names]
