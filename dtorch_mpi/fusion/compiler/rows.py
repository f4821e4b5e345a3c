"""Has inductor write the C++ of a fused kernel that reduces rows, as a function over some of them.

All its loops run over one block of rows before the next, so that what passes from one to another
stays in the cache.
"""

import ast

import torch
from expressions import EXPRESSIONS, evaluate
from reductions import REDUCTIONS
from source import CTYPES, VECTOR_BITS, as_static, called_kernels, lowered

ROWS, COLUMNS = 64, 48  # any two numbers that are not the same
BLOCK = 8192  # elements


def sizes_of(extent, rows, columns):
    return {"whole": (rows, columns), "one": (), "row": (columns,), "column": (rows, 1)}[extent]


def formula(name, arguments):
    if name in REDUCTIONS:
        return REDUCTIONS[name][0](*arguments)
    return EXPRESSIONS[name].formula(*arguments)


def _scratch(tree):
    """{buffer: (sizes, type)} of what the wrapper allocates."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and (
            getattr(node.value.func, "id", None) == "empty_strided_cpu"
        ):
            sizes, _, dtype = node.value.args
            names = [ast.unparse(size) for size in sizes.elts]
            found[node.targets[0].id] = names, CTYPES[dtype.attr]
    return found


def written(spec):
    """C++ of the kernel: `extern "C" void dtorch_fused_rows(void** pointers, begin, end, columns)`.

    pointers: to inputs, numbers, then outputs. Raises ValueError for what inductor makes another
    kind of code of.
    """
    examples = [torch.zeros(sizes_of(extent, ROWS, COLUMNS), dtype=getattr(torch, dtype))
                for dtype, extent in spec["inputs"]]  # fmt: skip
    numbers = [torch.zeros((), dtype=getattr(torch, dtype)) for dtype in spec["numbers"]]

    def function(*arguments):
        given, numbers = arguments[: len(examples)], arguments[len(examples) :]
        return evaluate(spec, given, numbers, formula)

    code, traced, arguments = lowered(function, [*examples, *numbers], VECTOR_BITS)
    tree = ast.parse(code)
    kernels, calls, returned = called_kernels(tree)
    if not calls or len(set(returned)) != len(returned) or set(returned) & set(arguments):
        raise ValueError(f"inductor's code is of another form than expected:\n{code}")
    whole = next(at for at, (_, extent) in enumerate(spec["inputs"]) if extent == "whole")
    sizes = dict(zip(map(str, traced[whole].shape), ("rows", "columns"), strict=True))
    extents = [extent for _, extent in spec["inputs"]] + ["one"] * len(numbers) + spec["extents"]
    pointers = {name: (at, extents[at]) for at, name in enumerate([*arguments, *returned])}
    scratch = {name: found for name, found in _scratch(tree).items() if name not in pointers}
    moved = {"whole": " + at * columns", "column": " + at", "reduced": " + at"}
    before = []
    for name, (lengths, kind) in scratch.items():
        count = " * ".join("block" if sizes.get(n) == "rows" else sizes.get(n, n) for n in lengths)
        before.append(f"  std::unique_ptr<{kind}[]> {name}(new {kind}[{count}]);")
    sources, lines = [], []
    for number, (kernel, given) in enumerate(calls):
        types, source = kernels[kernel]
        sources.append(as_static(source).replace("void kernel(", f"void kernel_{number}("))
        passed = []
        for kind, argument in zip(types, given, strict=True):
            if argument in pointers:
                at, extent = pointers[argument]
                passed.append(f"static_cast<{kind}>(pointers[{at}]){moved.get(extent, '')}")
            elif argument in scratch:
                passed.append(f"{argument}.get()")
            elif argument in sizes:
                passed.append(sizes[argument])
            else:
                raise ValueError(f"inductor asks for {argument}:\n{code}")
        lines.append(f"    kernel_{number}({', '.join(passed)});")
    head = ('extern "C" void dtorch_fused_rows(void** pointers, int64_t begin, int64_t end, '
            "int64_t columns) {")  # fmt: skip
    return "\n".join([
        "#include <algorithm>", "#include <memory>", *sources, head,
        f"  const int64_t block = std::max<int64_t>(1, {BLOCK} / std::max<int64_t>(1, columns));",
        *before, "  for (int64_t at = begin; at < end; at += block) {",
        "    const int64_t rows = std::min(block, end - at);", *lines, "  }", "}", ""])  # fmt: skip
