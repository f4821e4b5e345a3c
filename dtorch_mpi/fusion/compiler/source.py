"""Has inductor write the C++ of a fused kernel, as a function over a range of its elements."""

import ast
import re

import torch
import torch._inductor.config as config
from expressions import EXPRESSIONS, evaluate
from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.lowering import make_pointwise, register_lowering
from torch._inductor.virtualized import V, ops
from torch.fx.experimental.proxy_tensor import make_fx

# As wide as the vectors of ATen's kernels, so that what is left over at the end is the same.
VECTOR_BITS = {"AVX512": 512, "AVX2": 256}.get(torch.backends.cpu.get_cpu_capability())

INTERLEAVED = 4  # vectors, and more than there are registers for bring little

config.cpp.threads = 1  # the caller cuts the range
config.cpp.vec_isa_ok = True  # PyTorch itself knows what this CPU has; else it compiles a try
config.inplace_buffers = False
config.cpp_cache_precompile_headers = False
config.fx_graph_cache = False


@torch.library.custom_op("dtorch_fusion::multiply_add", mutates_args=())
def _multiply_add(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(c, a, b)


@_multiply_add.register_fake
def _(a, b, c):
    return a * b + c


register_lowering(torch.ops.dtorch_fusion.multiply_add, broadcast=True)(
    make_pointwise(lambda a, b, c: ops.fma(a, b, c))
)
CppOverrides.fma = staticmethod(lambda a, b, c: f"std::fma({a}, {b}, {c})")
CppVecOverrides.fma = staticmethod(lambda a, b, c: f"at::vec::fmadd({a}, {b}, {c})")


def _inductors(spec, bits):
    """Inductor's wrapper code for a spec; (code, names of its arguments)."""
    inputs = [torch.zeros((64,) if long else (), dtype=getattr(torch, dtype))
              for dtype, long in spec["inputs"]]  # fmt: skip
    numbers = [torch.zeros((), dtype=getattr(torch, dtype)) for dtype in spec["numbers"]]

    def function(*arguments):
        return evaluate(spec, arguments[: len(inputs)], arguments[len(inputs) :],
                        lambda name, given: EXPRESSIONS[name].formula(*given))  # fmt: skip

    traced = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="symbolic")
    module = traced(*inputs, *numbers)
    examples = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    mode = examples[0].fake_mode
    lowering = GraphLowering(module, example_inputs=examples, shape_env=mode.shape_env)
    with (config.patch({"cpp.simdlen": bits}), V.set_debug_handler(DebugContext()),
          V.set_graph_handler(lowering), V.set_fake_mode(mode),
          V.set_extern_kernel_nodes([])):  # fmt: skip
        lowering.run(*examples)
        code = lowering.codegen()[0]
    return getattr(code, "value", code), list(lowering.graph_input_names)


def _called(tree):
    """({kernel: (argument types, source)}, calls as (kernel, arguments), returned names)."""
    kernels, calls, returned = {}, [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            function = node.value.func
            if getattr(function, "attr", None) == "cpp_pybinding":
                types, source = map(ast.literal_eval, node.value.args[:2])
                kernels[node.targets[0].id] = types, source
        if isinstance(node, ast.FunctionDef) and node.name == "call":
            for inner in ast.walk(node):
                if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call):
                    name = getattr(inner.value.func, "id", None)
                    calls.append((name, [ast.unparse(a) for a in inner.value.args]))
                if isinstance(inner, ast.Return):
                    returned = [ast.unparse(element) for element in inner.value.elts]
    return kernels, [call for call in calls if call[0] in kernels], returned


def _function(spec, bits, name, change=lambda source: source):
    """C++ of `static void name(void** pointers, begin, end)`: inputs, numbers, then outputs.

    change: of inductor's functions, each `void kernel(...)`.
    """
    code, arguments = _inductors(spec, bits)
    kernels, calls, returned = _called(ast.parse(code))
    if not calls or len(set(returned)) != len(returned) or set(returned) & set(arguments):
        raise ValueError(f"inductor's code is of another form than expected:\n{code}")
    places = {argument: at for at, argument in enumerate([*arguments, *returned])}
    long = [long for _, long in spec["inputs"]]
    long += [False] * len(spec["numbers"]) + [True] * len(returned)
    sources, lines = [], []
    for number, (kernel, given) in enumerate(calls):
        types, source = kernels[kernel]
        source, count = re.subn(r'extern "C"\s+void\s+kernel\(', "static void kernel(", source)
        if count != 1:
            raise ValueError(f"inductor's kernel is of another form than expected:\n{source}")
        sources.append(change(source).replace("void kernel(", f"void {name}_{number}("))
        passed = []
        for kind, argument in zip(types, given, strict=True):
            if argument in places:
                at = places[argument]
                offset = " + begin" if long[at] else ""
                passed.append(f"static_cast<{kind}>(pointers[{at}]){offset}")
            elif "*" in kind:
                raise ValueError(f"inductor asks for a buffer, {argument}:\n{code}")
            else:
                passed.append("end - begin")  # the only size there is
        lines.append(f"  {name}_{number}({', '.join(passed)});")
    lines = [f"static void {name}(void** pointers, int64_t begin, int64_t end) {{", *lines, "}"]
    return "\n".join([*sources, *lines])


class NotALoopError(Exception):
    """A kernel is no plain loop over vectors."""


def _interleaved(source):
    """The same loop, with the operations of several vectors in turn.

    Within one vector each operation waits for the one before; a chain with functions such as exp
    takes half the time so.
    """
    loop = re.search(
        r"^static void kernel\(.*?\)\n\{.*?for\(int64_t x0=.*?x0\+=static_cast<int64_t>\((\d+)L\)\)"
        r".*?if\(C10_LIKELY\(x0 >= [^\n]*\n\s*\{\n(.*?)\n\s*\}\n\s*if\(C10_UNLIKELY\(", source,
        re.DOTALL | re.MULTILINE,
    )  # fmt: skip
    if loop is None or source.count("for(") != 1:
        raise NotALoopError
    size, lines = int(loop[1]), [line.strip() for line in loop[2].split("\n")]
    if not all(re.fullmatch(r"(auto tmp\d+ = |tmp\d+\.store\()[^{}]*;", line) for line in lines):
        raise NotALoopError
    step = INTERLEAVED * size
    body = [
        re.sub(r"\btmp(\d+)\b", rf"tmp\1_{way}", re.sub(r"\bx0\b", f"(x0 + {way * size})", line))
        for line in lines
        for way in range(INTERLEAVED)
    ]
    head = source[: source.index("{", loop.start())]
    loop = f"for (int64_t x0 = 0; x0 < ks0; x0 += {step}) {{"
    return "\n".join([head, "{", loop, *body, "}", "}"])


def written(spec):
    """C++ of a fused kernel: `extern "C" void dtorch_fused(void** pointers, begin, end)`.

    ATen's loops take two vectors at a time and work out the rest of a range one by one, where a
    function of the C library may round otherwise; so does this.
    """
    if VECTOR_BITS is None or spec["computes_in"] is None:
        parts = [_function(spec, VECTOR_BITS, "whole")]
        body = ["  whole(pointers, begin, end);"]
    else:
        parts = [_function(spec, VECTOR_BITS, "in_vectors"), _function(spec, 1, "one_by_one")]
        step = 2 * VECTOR_BITS // 8 // getattr(torch, spec["computes_in"]).itemsize
        body = [f"  const int64_t middle = begin + (end - begin) / {step} * {step};"]
        try:
            parts.append(_function(spec, VECTOR_BITS, "interleaved", _interleaved))
        except NotALoopError:
            pass
        else:
            step *= INTERLEAVED
            body += [f"  const int64_t most = begin + (end - begin) / {step} * {step};",
                     "  if (begin < most) interleaved(pointers, begin, most);",
                     "  begin = most;"]  # fmt: skip
        body += ["  if (begin < middle) in_vectors(pointers, begin, middle);",
                 "  if (middle < end) one_by_one(pointers, middle, end);"]  # fmt: skip
    head = 'extern "C" void dtorch_fused(void** pointers, int64_t begin, int64_t end) {'
    return "\n".join([*parts, head, *body, "}", ""])
