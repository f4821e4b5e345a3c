"""Has inductor write the C++ of a fused kernel, as a function over a range of its elements."""

import ast
import re

import torch
import torch._inductor.config as config
from expressions import FILL, evaluate, worked_out
from stages import VECTOR_FUNCTIONS, dtypes_of_nodes, split
from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler
from torch._inductor.graph import GraphLowering
from torch._inductor.lowering import make_pointwise, register_lowering
from torch._inductor.ops_handler import OpsHandler
from torch._inductor.virtualized import V, ops
from torch.fx.experimental.proxy_tensor import make_fx

# As wide as the vectors of ATen's kernels, so that what is left over at the end is the same.
VECTOR_BITS = {"AVX512": 512, "AVX2": 256}.get(torch.backends.cpu.get_cpu_capability())

BLOCK = 1024  # elements that go through all stages before the next
CTYPES = {"bfloat16": "at::BFloat16", "float32": "float", "float64": "double",
          "int64": "int64_t", "bool": "bool"}  # fmt: skip
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


@torch.library.custom_op("dtorch_fusion::narrow", mutates_args=())
def _narrow(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).float()


@_narrow.register_fake
def _(x):
    return torch.empty_like(x)


register_lowering(torch.ops.dtorch_fusion.narrow)(make_pointwise(lambda x: ops.narrow(x)))


NARROW = """
#include <torch/csrc/inductor/cpp_prefix.h>
using at::vec::convert;

static inline float narrow(float x) { return static_cast<float>(static_cast<at::BFloat16>(x)); }

static inline at::vec::Vectorized<float> narrow(at::vec::Vectorized<float> x) {
  return convert<float, 1, at::BFloat16, 1>(convert<at::BFloat16, 1, float, 1>(x));
}

static inline at::vec::VectorizedN<float, 2> narrow(at::vec::VectorizedN<float, 2> x) {
  return convert<float, 2, at::BFloat16, 1>(convert<at::BFloat16, 1, float, 2>(x));
}
"""


def _overrides(function, name):
    """Inductor's operator `name` as a C++ function; it finds one by the other's own name."""

    def call(*arguments):
        return f"{function}({', '.join(map(str, arguments))})"

    call.__name__ = name
    return staticmethod(call)


CppOverrides.fma = _overrides("std::fma", "fma")
CppVecOverrides.fma = _overrides("at::vec::fmadd", "fma")
CppOverrides.narrow = CppVecOverrides.narrow = _overrides("narrow", "narrow")
OpsHandler.narrow = lambda self, x: self._default("narrow", (x,), {})  # it warns of others
DtypePropagationOpsHandler.narrow = staticmethod(lambda x: torch.float32)


def lowered(function, examples, bits):
    """Inductor's wrapper code for a function of tensors; (code, its arguments as traced, their
    names)."""
    traced = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="symbolic")
    module = traced(*examples)
    examples = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    mode = examples[0].fake_mode
    lowering = GraphLowering(module, example_inputs=examples, shape_env=mode.shape_env)
    with (config.patch({"cpp.simdlen": bits}), V.set_debug_handler(DebugContext()),
          V.set_graph_handler(lowering), V.set_fake_mode(mode),
          V.set_extern_kernel_nodes([])):  # fmt: skip
        lowering.run(*examples)
        code = lowering.codegen()[0]
    return getattr(code, "value", code), examples, list(lowering.graph_input_names)


def _inductors(spec, bits):
    """Inductor's wrapper code for a spec; (code, names of its arguments)."""
    inputs = [torch.zeros((64,) if extent == "whole" else (), dtype=getattr(torch, dtype))
              for dtype, extent in spec["inputs"]]  # fmt: skip
    numbers = [torch.zeros((), dtype=getattr(torch, dtype)) for dtype in spec["numbers"]]

    def function(*arguments):
        *arguments, model = arguments

        def call(name, given):
            if name == FILL:
                # A number as often as there are elements: what follows is worked out for each.
                made = given[0].expand(model.shape).clone()
                is_narrow = given[1] == "bfloat16"
                return _narrow(made).to(torch.bfloat16) if is_narrow else made
            return worked_out(name, given, bits == 1)

        return evaluate(spec, arguments[: len(inputs)], arguments[len(inputs) :], call)

    # The last one says nothing but how many elements there are.
    code, _, names = lowered(function, [*inputs, *numbers, torch.zeros(64)], bits)
    return code, names[:-1]


def called_kernels(tree):
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
    kernels, calls, returned = called_kernels(ast.parse(code))
    if not calls or len(set(returned)) != len(returned) or set(returned) & set(arguments):
        raise ValueError(f"inductor's code is of another form than expected:\n{code}")
    places = {argument: at for at, argument in enumerate([*arguments, *returned])}
    long = [extent == "whole" for _, extent in spec["inputs"]]
    long += [False] * len(spec["numbers"]) + [True] * len(returned)
    sources, lines = [], []
    for number, (kernel, given) in enumerate(calls):
        types, source = kernels[kernel]
        source = as_static(source)
        _check_loops(spec, source, [places.get(argument) for argument in given])
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


def as_static(source):
    """Inductor's function as one that only the file sees, `static void kernel(...)`."""
    source, count = re.subn(r'extern "C"\s+void\s+kernel\(', "static void kernel(", source)
    if count != 1:
        raise ValueError(f"inductor's kernel is of another form than expected:\n{source}")
    return source


def _check_loops(spec, source, given):
    """Raise ValueError where a loop reads what one before has written over.

    given: which pointer each of the function's arguments is.
    """
    head, *loops = source.split("for(int64_t x0=")
    names = re.findall(r"\b(?:in|out)_ptr\d+\b", head[head.index("kernel(") :])
    pointers = dict(zip(names, given, strict=False))
    first_output = len(spec["inputs"]) + len(spec["numbers"])
    overwritten = set()
    for loop in loops:
        used = {pointers[name] for name in set(re.findall(r"\b(?:in|out)_ptr\d+\b", loop))}
        if used & overwritten:
            raise ValueError(f"inductor's loops read what they have written:\n{source}")
        overwritten |= {at for output, at in spec["writes"] if first_output + output in used}


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


def _stage(spec, name):
    """C++ of `static void name(void** pointers, begin, end)` for a part without MKL's functions.

    ATen's loops take two vectors at a time and work out the rest of a range one by one, where a
    function of the C library may round otherwise; so does this.
    """
    if VECTOR_BITS is None or spec["computes_in"] is None:
        parts = [_function(spec, VECTOR_BITS, f"{name}_whole")]
        body = [f"  {name}_whole(pointers, begin, end);"]
    else:
        parts = [_function(spec, VECTOR_BITS, f"{name}_in_vectors"),
                 _function(spec, 1, f"{name}_one_by_one")]  # fmt: skip
        step = 2 * VECTOR_BITS // 8 // getattr(torch, spec["computes_in"]).itemsize
        body = [f"  const int64_t middle = begin + (end - begin) / {step} * {step};"]
        try:
            parts.append(_function(spec, VECTOR_BITS, f"{name}_interleaved", _interleaved))
        except NotALoopError:
            pass
        else:
            step *= INTERLEAVED
            body += [f"  const int64_t most = begin + (end - begin) / {step} * {step};",
                     f"  if (begin < most) {name}_interleaved(pointers, begin, most);",
                     "  begin = most;"]  # fmt: skip
        body += [f"  if (begin < middle) {name}_in_vectors(pointers, begin, middle);",
                 f"  if (middle < end) {name}_one_by_one(pointers, middle, end);"]  # fmt: skip
    head = f"static void {name}(void** pointers, int64_t begin, int64_t end) {{"
    return "\n".join([*parts, head, *body, "}", ""])


def written(spec):
    """C++ of a fused kernel: `extern "C" void dtorch_fused(void** pointers, begin, end)`.

    pointers: to inputs, numbers, outputs, then how each input that is spread is.
    """
    stages = split(spec)
    first = [NARROW] if spec["computes_in"] == "bfloat16" else []
    head = 'extern "C" void dtorch_fused(void** pointers, int64_t begin, int64_t end) {'
    if len(stages) == 1 and not stages[0].functions and not spread_inputs(spec):
        call = "  all(pointers, begin, end);"
        return "\n".join([*first, _stage(spec, "all"), head, call, "}", ""])
    block = _Block(spec)
    parts, body = [*first, *([SPREAD] if spread_inputs(spec) else [])], block.spreads()
    for number, stage in enumerate(stages):
        if stage.spec is not None:
            parts.append(_stage(stage.spec, f"stage_{number}"))
            given = ", ".join(map(block.pointer, (*stage.reads, *stage.writes)))
            body += [f"    void* given_{number}[] = {{{given}}};",
                     f"    stage_{number}(given_{number}, 0, count);"]  # fmt: skip
        body += [block.call(node, source) for node, source in stage.functions]
    loop = f"  for (int64_t at = begin; at < end; at += {BLOCK}) {{"
    count = f"    const int64_t count = std::min<int64_t>({BLOCK}, end - at);"
    before, after = [], []
    if any(stage.functions for stage in stages):
        # Else each call for a block would begin threads of its own within this one.
        block.declarations.append('extern "C" int MKL_Set_Num_Threads_Local(int);')
        before = ["  const int threads = MKL_Set_Num_Threads_Local(1);"]
        after = ["  MKL_Set_Num_Threads_Local(threads);"]
    return "\n".join([*block.declarations, *parts, head, *block.buffers, *before, loop, count,
                      *body, "  }", *after, "}", ""])  # fmt: skip


def spread_inputs(spec):
    return [at for at, (_, extent) in enumerate(spec["inputs"]) if extent == "spread"]


# shape: as src/worker/fused.h has it.
SPREAD = """
#include <algorithm>
#include <cstdint>

template <class T>
static void spread(T* to, const T* from, int64_t begin, int64_t count, const void* given) {
  const auto* shape = static_cast<const int64_t*>(given);
  const int64_t every = shape[0], period = shape[1], outer = every * period * shape[2];
  for (int64_t i = begin, end = begin + count; i < end;) {
    const T* base = from + i / outer % shape[3] * period + i / every % period;
    int64_t length;
    if (every == 1) {
      length = std::min(period - i % period, end - i);
      std::copy_n(base, length, to);
    } else {
      length = std::min(every - i % every, end - i);
      std::fill_n(to, length, *base);
    }
    to += length;
    i += length;
  }
}
"""


class _Block:
    """Names of what a block of elements is read from and written to."""

    # VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE of mkl_vml_defines.h, as ATen calls them.
    MODE = "0x140102"

    def __init__(self, spec):
        self._spec = spec
        self._dtypes = dtypes_of_nodes(spec)
        self.declarations, self.buffers = [], []
        self._known = {}

    def spreads(self):
        """C++ that has what belongs to the block from inputs that are spread."""
        shape = sum(len(self._spec[name]) for name in ("inputs", "numbers", "outputs"))
        lines = []
        for at in spread_inputs(self._spec):
            dtype = self._spec["inputs"][at][0]
            kind = CTYPES[dtype]
            self.buffers.append(f"  alignas(64) {kind} spread_{at}[{BLOCK}];")
            lines.append(f"    spread(spread_{at}, static_cast<const {kind}*>(pointers[{at}]), at, "
                         f"count, pointers[{shape}]);")  # fmt: skip
            shape += 1
        return lines

    def pointer(self, place):
        kind, at = place
        offset = len(self._spec["inputs"])
        if kind == "input":
            dtype, extent = self._spec["inputs"][at]
            if extent == "spread":
                return f"spread_{at}"
            return self._moved(at, dtype) if extent == "whole" else f"pointers[{at}]"
        if kind == "number":
            return f"pointers[{offset + at}]"
        if at in self._spec["outputs"]:
            offset += len(self._spec["numbers"])
            return self._moved(offset + self._spec["outputs"].index(at), self._dtypes[at])
        if at not in self._known:
            self._known[at] = f"kept_{at}"
            size = getattr(torch, self._dtypes[at]).itemsize
            self.buffers.append(f"  alignas(64) char kept_{at}[{BLOCK * size}];")
        return self._known[at]

    @staticmethod
    def _moved(at, dtype):
        return f"static_cast<char*>(pointers[{at}]) + at * {getattr(torch, dtype).itemsize}"

    def call(self, node, source):
        """A call of one of MKL's functions."""
        dtype = self._dtypes[node]
        letter, kind = {"float32": ("s", "float"), "float64": ("d", "double")}[dtype]
        function = f"vm{letter}{VECTOR_FUNCTIONS[self._spec['nodes'][node][0]]}"
        declared = f'extern "C" void {function}(int, const {kind}*, {kind}*, long long);'
        if declared not in self.declarations:
            self.declarations.append(declared)
        return (f"    {function}(count, reinterpret_cast<const {kind}*>({self.pointer(source)}), "
                f"reinterpret_cast<{kind}*>({self.pointer(['node', node])}), {self.MODE});")
