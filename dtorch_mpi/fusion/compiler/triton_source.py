"""Writes a fused kernel in Triton, by its description (see dtorch_mpi/fusion/spec.py).

What it takes, in order: the inputs, the numbers by their values, the outputs; of a pointwise
kernel the Spread of each input that has one (src/worker/fused.h) and how many elements there are;
of one that reduces rows, how many rows and columns. All counts are of 32 bits: who calls it cuts
larger tensors.
"""

from dataclasses import dataclass

from expressions import EXPRESSIONS as DESCRIBED
from expressions import FILL
from reductions import REDUCTIONS as REDUCING
from triton_expressions import EXPRESSIONS, REDUCTIONS

POINTERS = {"float32": "*fp32", "float64": "*fp64", "int64": "*i64", "bfloat16": "*bf16",
            "bool": "*i8"}  # fmt: skip
NUMBERS = {"float32": "fp32", "float64": "fp64", "int64": "i64"}
SPREAD = ("every", "count", "outer_every", "outer_count")

HEAD = """import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
"""


@dataclass(frozen=True)
class Variant:
    """How much of it one program does: of a pointwise kernel `columns` elements (rows 1); of one
    that reduces rows so many of them, with at most so many columns."""

    rows: int
    columns: int
    num_warps: int


POINTWISE = (Variant(1, 1024, 4),)
# As many columns as passes/reduction_groups.py lets a row have.
ROWS = (Variant(16, 128, 4), Variant(2, 1024, 4), Variant(1, 4096, 8), Variant(1, 16384, 16))


@dataclass(frozen=True)
class Source:
    """text: of the program. signature: what its function takes and their types, in order; the
    constants ROWS and COLUMNS follow. aligned: which of them are addresses."""

    text: str
    signature: dict
    variants: tuple

    @property
    def aligned(self):
        return [at for at, kind in enumerate(self.signature.values()) if kind.startswith("*")]


def written(spec):
    """The Source of a kernel."""
    inputs = {f"i{at}": POINTERS[dtype] for at, (dtype, _) in enumerate(spec["inputs"])}
    numbers = {f"n{at}": NUMBERS[dtype] for at, dtype in enumerate(spec["numbers"])}
    outputs = {f"o{at}": POINTERS[dtype] for at, dtype in enumerate(spec["dtypes"])}
    signature = inputs | numbers | outputs
    if "extents" in spec:
        signature |= {"rows": "i32", "columns": "i32"}
        lines, variants = _rows(spec), ROWS
    else:
        for at, (_, extent) in enumerate(spec["inputs"]):
            if extent == "spread":
                signature |= {f"{name}{at}": "i32" for name in SPREAD}
        signature |= {"numel": "i32"}
        lines, variants = _pointwise(spec), POINTWISE
    taken = ", ".join([*signature, "ROWS: tl.constexpr", "COLUMNS: tl.constexpr"])
    text = HEAD + f"def dtorch_fused({taken}):\n" + "".join(f"    {line}\n" for line in lines)
    return Source(text, signature, variants)


def _pointwise(spec):
    extents = ["whole"] * len(spec["outputs"])

    def body(mask):
        places = {"whole": "at"}
        return [*_loads(spec, places, mask), *_nodes(spec),
                *_stores(spec, extents, places, mask)]  # fmt: skip

    # Without a mask, loads and stores are as wide as the hardware has them.
    return [
        "begin = tl.program_id(0) * COLUMNS",
        "at = begin + tl.arange(0, COLUMNS)",
        "if begin + COLUMNS <= numel:",
        *(f"    {line}" for line in body({})),
        "else:",
        "    mask = at < numel",
        *(f"    {line}" for line in body({"whole": "mask", "spread": "mask"})),
    ]


def _rows(spec):
    masks = {"whole": "mask", "column": "row_mask", "reduced": "row_mask", "row": "column_mask"}
    places = {"whole": "row.to(tl.int64) * columns + column", "column": "row", "reduced": "row",
              "row": "column"}  # fmt: skip
    return [
        "row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]",
        "column = tl.arange(0, COLUMNS)[None, :]",
        "row_mask = row < rows",
        "column_mask = column < columns",
        "mask = row_mask & column_mask",
        *_loads(spec, places, masks),
        *_nodes(spec),
        *_stores(spec, spec["extents"], places, masks),
    ]


def _loads(spec, places, masks):
    for at, (dtype, extent) in enumerate(spec["inputs"]):
        if extent == "spread":
            every, count, outer_every, outer_count = (f"{name}{at}" for name in SPREAD)
            place = (f"at // {every} % {count} + "
                     f"at // ({every} * {count} * {outer_every}) % {outer_count} * {count}")
        else:
            place = places.get(extent)  # None: it has one element
        mask = f", {masks[extent]}" if extent in masks else ""
        loaded = f"tl.load(i{at}{'' if place is None else f' + {place}'}{mask})"
        yield f"x{at} = {_as_computed(loaded, dtype)}"


def _as_computed(loaded, dtype):
    if dtype == "bool":
        return f"{loaded} != 0"
    return f"{loaded}.to(tl.float32)" if dtype == "bfloat16" else loaded


def _stores(spec, extents, places, masks):
    for at, (node, extent) in enumerate(zip(spec["outputs"], extents, strict=True)):
        mask = f", {masks[extent]}" if extent in masks else ""
        dtype = spec["dtypes"][at]
        value = f"v{node}" + {"bool": ".to(tl.int8)", "bfloat16": ".to(tl.bfloat16)"}.get(dtype, "")
        yield f"tl.store(o{at} + {places[extent]}, {value}{mask})"


def _nodes(spec):
    """The lines of all operators, with v0, v1, ... for what they give."""
    dtypes = []
    known = {
        "input": [dtype for dtype, _ in spec["inputs"]], "number": spec["numbers"], "node": dtypes,
    }  # fmt: skip
    letters = {"input": "x", "number": "n", "node": "v"}
    for at, (name, arguments) in enumerate(spec["nodes"]):
        if name == FILL:
            number, dtype, *_ = arguments
            lines, given = [f"v{at} = {letters[number[0]]}{number[1]}"], dtype
        else:
            names = [a and f"{letters[a[0]]}{a[1]}" for a in arguments]
            of = [known[a[0]][a[1]] for place, a in enumerate(arguments)
                  if a and a[0] != "number" and place not in _masks(name)]  # fmt: skip
            given = of[0]
            if name in REDUCING:
                lines = [line.format(*names, made=f"v{at}", other=f"w{at}")
                         for line in REDUCTIONS[name]]  # fmt: skip
            else:
                computed = "float32" if given == "bfloat16" else given
                lines = [f"v{at} = {EXPRESSIONS[name](computed, *names)}"]
                result = DESCRIBED[name].result
                given = given if result is None else str(result).removeprefix("torch.")
        yield from lines
        if given == "bfloat16":
            yield f"v{at} = v{at}.to(tl.bfloat16).to(tl.float32)"
        dtypes.append(given)


def _masks(name):
    return DESCRIBED[name].masks if name in DESCRIBED else ()
