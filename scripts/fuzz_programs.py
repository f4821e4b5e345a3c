"""Random tensor programs, and running one on plain PyTorch and on `dtorch` side by side.

A program is a list of lines of Python over tensors v0, v1, ...: readable when it fails, and kept
as it is for a test. Two functions differ between the sides: `tensor` makes and places one,
`redistribute` moves one (a copy in plain PyTorch).
"""

import contextlib
import functools
import math
import random

import torch
from hypothesis import strategies as st

FLOAT, INT, BOOL = "float64", "int64", "bool"
UNARY = ("neg", "abs", "tanh", "sin", "relu", "square", "clone", "sign", "exp")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "atan2")
COMPARE = ("lt", "ge", "eq")
REDUCE = ("sum", "mean", "amax", "amin", "var", "logsumexp", "cumsum", "softmax", "log_softmax",
          "argmax", "any", "all", "cumprod", "norm")
MOST_ELEMENTS = 4096


# ---- running ---------------------------------------------------------------------------------

def make(seed, sizes, dtype):
    """The tensor that `tensor` stands for, on the CPU: small numbers, all different."""
    count = math.prod(sizes)
    generator = torch.Generator().manual_seed(seed)
    if dtype == BOOL:
        return torch.randint(0, 2, sizes, generator=generator).bool()
    if dtype == INT:
        return torch.randint(-4, 5, sizes, generator=generator)
    return (torch.randperm(max(count, 1), generator=generator)[:count].to(getattr(torch, dtype))
            / max(count, 1) * 4 - 2).view(sizes)


@functools.cache
def _compiled(line):
    """The same code each time, so that the same line comes from the same place."""
    return compile(line, "<program>", "exec")


class Plain:
    """One run of a program in plain PyTorch."""

    def __init__(self):
        self.names = {"torch": torch, "tensor": self.tensor, "redistribute": self.redistribute}

    def tensor(self, seed, sizes, dtype, placements, requires_grad=False):
        return make(seed, sizes, dtype).requires_grad_(requires_grad)

    def redistribute(self, value, placements):
        return value.clone()

    def run(self, line):
        """Runs one line; returns the error's type if it raises."""
        try:
            exec(_compiled(line), self.names)
        except Exception as error:
            return error
        return None

    def values(self):
        """Every tensor by name, and the gradients of leaves, on the CPU."""
        found = {}
        for name, value in list(self.names.items()):
            if isinstance(value, torch.Tensor):
                found[name] = value.detach().cpu()
                if value.is_leaf and value.requires_grad and value.grad is not None:
                    found[name + ".grad"] = value.grad.cpu()
        return found


class Distributed(Plain):
    """The same program on dtorch, on one mesh. graphs: that its lines are issued to, at random."""

    def __init__(self, mesh, graphs=()):
        super().__init__()
        self.mesh = mesh
        self.graphs = graphs
        self.turns = random.Random(len(graphs))

    def run(self, line):
        if not self.graphs:
            return super().run(line)
        with self.turns.choice([contextlib.nullcontext(), *self.graphs]):
            return super().run(line)

    def tensor(self, seed, sizes, dtype, placements, requires_grad=False):
        import dtorch_mpi as dt

        placed = dt.distribute_tensor(make(seed, sizes, dtype), self.mesh, parse(placements))
        return placed.requires_grad_(requires_grad)

    def redistribute(self, value, placements):
        return value.redistribute(self.mesh, parse(placements)).clone()


def parse(placements):
    """'S0 R P' as PyTorch's placements."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    return [
        Shard(int(word[1:])) if word[0] == "S" else Replicate() if word == "R" else Partial()
        for word in placements.split()
    ]


def differences(lines, mesh, times=1, graphs=()):
    """What differs between the two runs of a program: a text, empty where nothing does.

    times: how often it is run on dtorch. From the third time on workers replay it, and the last
    two times as the passes have rewritten it. graphs: that its lines go to, beside the main one.
    """
    from dtorch_mpi.runtime import current

    for left in reversed(range(times)):
        if times > 1 and left == 1:
            current().main.planner.wait()
        if wrong := _differences(lines, mesh, graphs):
            return wrong if left == times - 1 else f"the {times - left}th time: {wrong}"
    return ""


def _differences(lines, mesh, graphs):
    plain, distributed = Plain(), Distributed(mesh, graphs)
    for line in lines:
        expected, got = plain.run(line), distributed.run(line)
        if type(expected) is not type(got):
            return f"{line}\n  plain PyTorch: {expected!r}\n  dtorch: {got!r}"
    try:
        wanted = plain.values()
    except RuntimeError:
        return ""  # a view that autograd can't say the history of any more: nothing to compare
    try:
        found = distributed.values()
    except Exception as error:
        return f"reading: {type(error).__name__}: {error}"
    if wanted.keys() != found.keys():
        return f"plain PyTorch has {sorted(wanted)}, dtorch {sorted(found)}"
    for name, value in wanted.items():
        mine = found[name]
        if mine.shape != value.shape or mine.dtype != value.dtype:
            return (f"{name}: {mine.dtype} {tuple(mine.shape)}, expected {value.dtype} "
                    f"{tuple(value.shape)}")
        try:
            torch.testing.assert_close(mine, value, rtol=1e-6, atol=1e-8, equal_nan=True)
        except AssertionError as error:
            return f"{name}: {error}\ngot {mine}\nexpected {value}"
    return ""


# ---- making ----------------------------------------------------------------------------------

class Maker:
    """Draws a program, running it in plain PyTorch on the way to know sizes and types."""

    def __init__(self, draw, num_axes):
        self.draw, self.num_axes = draw, num_axes
        self.lines, self.plain = [], Plain()
        self.count = 0

    def add(self, line):
        """Appends a line that plain PyTorch can run; says whether it could."""
        error = self.plain.run(line)
        if error is not None:
            return False
        self.lines.append(line)
        return True

    def bind(self, expression):
        """A new name for an expression's value, unless it fails or grows too large."""
        name = f"v{self.count}"
        if not self.add(f"{name} = {expression}"):
            return
        value = self.plain.names[name]
        if not isinstance(value, torch.Tensor) or value.numel() > MOST_ELEMENTS:
            del self.plain.names[name]
            self.lines.pop()
            return
        self.count += 1

    def names(self, want=lambda value: True):
        return [n for n, v in self.plain.names.items() if isinstance(v, torch.Tensor) and want(v)]

    def pick(self, want=lambda value: True):
        names = self.names(want)
        return self.draw(st.sampled_from(names)) if names else None

    def value(self, name):
        return self.plain.names[name]

    def integer(self, low, high):
        return self.draw(st.integers(low, high))

    def one_of(self, items):
        return self.draw(st.sampled_from(items))

    def placements(self, ndim, partial=False):
        words = ["R"] + [f"S{dim}" for dim in range(ndim)] + (["P"] if partial else [])
        return " ".join(self.one_of(words) for _ in range(self.num_axes))

    def dim(self, value):
        return self.integer(-value.ndim, value.ndim - 1)

    # Each of these adds at most one line.

    def create(self):
        sizes = tuple(self.draw(st.lists(st.integers(0, 6), max_size=4)))
        dtype = self.one_of([FLOAT, FLOAT, FLOAT, INT, BOOL])
        grad = dtype == FLOAT and self.draw(st.booleans())
        self.bind(f"tensor({self.integer(0, 99)}, {sizes}, {dtype!r}, "
                  f"{self.placements(len(sizes))!r}, {grad})")

    def unary(self):
        name = self.pick()
        self.bind(f"{name}.{self.one_of(UNARY)}()")

    def binary(self):
        first, second = self.pick(), self.pick()
        self.bind(f"torch.{self.one_of(BINARY + COMPARE)}({first}, {second})")

    def scalar(self):
        name = self.pick()
        self.bind(f"{name} {self.one_of(['+', '*', '-'])} {self.integer(-3, 3)}")

    def where(self):
        mask = self.pick(lambda v: v.dtype == torch.bool)
        if mask:
            self.bind(f"torch.where({mask}, {self.pick()}, {self.pick()})")

    def reduce(self):
        name = self.pick(lambda v: v.ndim > 0)
        if name:
            which, dim = self.one_of(REDUCE), self.dim(self.value(name))
            keep = ", keepdim=True" if self.draw(st.booleans()) else ""
            keep = "" if which in ("cumsum", "cumprod", "softmax", "log_softmax") else keep
            self.bind(f"{name}.{which}(dim={dim}{keep})")

    def reduce_all(self):
        which = self.one_of(["sum", "mean", "amax", "prod", "std", "argmin"])
        self.bind(f"{self.pick()}.{which}()")

    def view(self):
        name = self.pick(lambda v: v.ndim > 0)
        if not name:
            return
        value = self.value(name)
        d, e = self.dim(value), self.dim(value)
        size = value.shape[d]
        start = self.integer(0, max(size - 1, 0))
        choices = [
            f"{name}.transpose({d}, {e})", f"{name}.unsqueeze({d})", f"{name}.squeeze()",
            f"{name}.flatten()", f"{name}.movedim({d}, {e})", f"{name}.mT", f"{name}.squeeze({d})",
            f"{name}.reshape(-1)", f"{name}.select({d}, {start})", f"{name}.flip({d})",
            f"{name}.narrow({d}, {start}, {self.integer(0, max(size - start, 0))})",
            f"{name}.expand(2, *{name}.shape)", f"{name}.chunk(2, {d})[-1]",
            f"{name}.diagonal(0, {d}, {e})", f"{name}.unfold({d}, {min(2, size)}, 1)",
            f"{name}[..., ::2]", f"{name}.unbind({d})[0]", f"{name}.roll({start}, {d})",
            f"{name}.contiguous()", f"{name}.T", f"{name}.detach()", f"{name}.swapaxes({d}, {e})",
        ]
        self.bind(self.one_of(choices))

    def reshape(self):
        name = self.pick()
        count = self.value(name).numel()
        divisors = [k for k in range(1, count + 1) if count % k == 0] or [1]
        first = self.one_of(divisors)
        rest = self.one_of([k for k in divisors if (count // first) % k == 0] or [1])
        last = count // (first * rest) if count else 0
        kind = self.one_of(["view", "reshape"])
        self.bind(f"{name}.{kind}({first}, {rest}, {last})")

    def matmul(self):
        first = self.pick(lambda v: v.ndim > 0 and v.dtype == torch.float64)
        if first:
            size = self.value(first).shape[-1]
            second = self.pick(lambda v: v.dtype == torch.float64 and v.ndim > 0
                               and v.shape[-2 if v.ndim > 1 else 0] == size)
            if second:
                self.bind(f"torch.matmul({first}, {second}) / 4")

    def join(self):
        name = self.pick(lambda v: v.ndim > 0)
        if name:
            value = self.value(name)
            other = self.pick(lambda v: v.ndim == value.ndim and v.dtype == value.dtype)
            dim = self.dim(value)
            self.bind(self.one_of([f"torch.cat([{name}, {other}], {dim})",
                                   f"torch.stack([{name}, {name}], {dim})"]))

    def order(self):
        name = self.pick(lambda v: v.ndim > 0 and v.numel() > 0 and v.dtype == torch.float64)
        if name:
            d = self.dim(self.value(name))
            self.bind(self.one_of([
                f"{name}.sort(dim={d}, stable=True).values", f"{name}.topk(1, dim={d}).values",
                f"{name}.median(dim={d}).values", f"{name}.cummax(dim={d}).values",
                f"{name}.tril()", f"{name}.kthvalue(1, dim={d}).values",
            ]))

    def index(self):
        name = self.pick(lambda v: v.ndim > 0 and v.shape[0] > 0)
        if not name:
            return
        size = self.value(name).shape[0]
        rows = self.draw(st.lists(st.integers(0, size - 1), max_size=5))
        index = f"tensor({self.integer(0, 9)}, ({len(rows)},), 'int64', {self.placements(1)!r})"
        index = f"({index}.abs() % {size})"
        self.bind(self.one_of([
            f"{name}[{index}]", f"{name}.index_select(0, {index})", f"{name}[{name} > 0]",
            f"{name}.masked_fill({name} > 0, 3)", f"({name} > 0).nonzero()",
            f"torch.take_along_dim({name}, {name}.argsort(0, stable=True), 0)",
            f"{name}.index_add(0, {index}, {name}[{index}])",
            f"{name}.scatter(0, {name}.argsort(0, stable=True), {name})",
        ]))

    def write(self):
        """In place, through whatever views there are."""
        name = self.pick()
        value = self.value(name)
        other = self.pick(lambda v: v.dtype == value.dtype)
        lines = [f"{name}.add_(1)", f"{name}.mul_(2)", f"{name}.zero_()", f"{name}.fill_(3)",
                 f"{name}.copy_({other})", f"{name}.add_({other})", f"{name}.clamp_(0, 1)"]
        if value.ndim > 0 and value.shape[0] > 0:
            at = self.integer(0, value.shape[0] - 1)
            lines += [f"{name}[{at}] = 5", f"{name}[{at}:] = {other}", f"{name}[{at}].mul_(2)",
                      f"{name}[{name} > 1] = 0", f"{name}[..., 0].add_(1)",
                      f"{name}.index_fill_(0, {name}.argsort(0).flatten()[:1], 2)"]
        line = self.one_of(lines)
        hidden = value.requires_grad and self.draw(st.booleans())
        # What autograd makes of a leaf that was written to behind its back, through a view, is
        # not said anywhere.
        if not (hidden and value._base is not None and value._base.is_leaf):
            self.add(f"with torch.no_grad(): {line}" if hidden else line)

    def move(self):
        name = self.pick()
        partial = self.value(name).dtype == torch.float64
        where = self.placements(self.value(name).ndim, partial)
        self.bind(f"redistribute({name}, {where!r})")

    def backward(self):
        name = self.pick(lambda v: v.requires_grad and v.is_floating_point())
        if name:
            self.add(f"({name} * {name}).sum().backward(retain_graph=True)")


STEPS = (
    Maker.create, Maker.unary, Maker.binary, Maker.scalar, Maker.where, Maker.reduce,
    Maker.reduce_all, Maker.view, Maker.view, Maker.view, Maker.reshape, Maker.matmul, Maker.join,
    Maker.order, Maker.index, Maker.write, Maker.write, Maker.move, Maker.move, Maker.backward,
)


@st.composite
def programs(draw, num_axes, most_steps=12):
    """Programs for a mesh of `num_axes` axes, as lists of lines."""
    maker = Maker(draw, num_axes)
    maker.create()
    for step in draw(st.lists(st.sampled_from(STEPS), max_size=most_steps)):
        step(maker)
    return maker.lines


def text(lines, mesh):
    """A program as the test that would keep it."""
    shape = tuple(mesh.shape)
    return f"mesh {shape}\n" + "\n".join(f"    {line}" for line in lines)
