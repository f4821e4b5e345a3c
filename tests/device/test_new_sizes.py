"""Sizes a known operator was not seen with: PyTorch's values, shapes and strides, no Python."""

import random

import pytest
import torch
import torch.nn.functional as F
from test_capture_cost import python_calls_while

import dtorch_mpi as dt
from dtorch_mpi import Replicate, Shard


def randn(*sizes):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def counts():
    counters = dt.debug.counters()
    return counters["misses"], counters["new_sizes"]


# Of one number n and the tensors' maker, so that each call has the sizes that n gives.
OPERATORS = {
    "add": lambda n, t: t(4, n, 6) + t(4, n, 6),
    "add broadcast": lambda n, t: t(4, n, 6) + t(n, 1),
    "add row": lambda n, t: t(n, 6) + t(6),
    "add in place": lambda n, t: t(4, n).add_(t(n)),
    "where": lambda n, t: torch.where(t(n, 4) > 0, t(4), t(n, 4)),
    "gelu": lambda n, t: F.gelu(t(4, n, 6)),
    "gelu of a transposed": lambda n, t: F.gelu(t(4, n, 6).transpose(0, 1)),
    "sum": lambda n, t: t(4, n, 6).sum(1),
    "sum kept": lambda n, t: t(4, n, 6).sum((0, 2), keepdim=True),
    "mean": lambda n, t: t(4, n).mean(-1),
    "amax": lambda n, t: t(4, n + 1).amax(-1),
    "argmax": lambda n, t: t(n + 1, 4).argmax(0),
    "max": lambda n, t: t(n + 1, 4).max(0),
    "mm": lambda n, t: t(n, 4) @ t(4, 3),
    "mm inner": lambda n, t: t(3, n) @ t(n, 4),
    "mm transposed": lambda n, t: t(3, n) @ t(4, n).t(),
    "bmm": lambda n, t: t(2, n, 4) @ t(2, 4, n),
    "linear": lambda n, t: F.linear(t(2, n, 4), t(6, 4), t(6)),
    "softmax": lambda n, t: t(2, n, n).softmax(-1),
    "layer_norm": lambda n, t: F.layer_norm(t(2, n, 6), (6,), t(6), t(6)),
    "embedding": lambda n, t: F.embedding(t(2, n).abs().long() % 5, t(5, 4)),
    "cat": lambda n, t: torch.cat([t(2, n, 4), t(2, 1, 4)], 1),
    "cat of three": lambda n, t: torch.cat([t(n, 4), t(2 * n, 4), t(3, 4)]),
    "stack": lambda n, t: torch.stack([t(n, 2), t(n, 2)], 1),
    "view": lambda n, t: t(4, n, 6).view(4, n, 3, 2),
    "view joins": lambda n, t: t(4, n, 6).view(4 * n, 6),
    "view of the rest": lambda n, t: t(4, n, 6).view(-1, 6) if n else t(0, 6),
    "reshape of a transposed": lambda n, t: t(4, n, 6).transpose(0, 1).reshape(n, 24),
    "transpose": lambda n, t: t(4, n, 6).transpose(1, 2),
    "permute": lambda n, t: t(4, n, 6, 2).permute(2, 0, 3, 1),
    "contiguous": lambda n, t: t(4, n, 6).transpose(1, 2).contiguous(),
    "unsqueeze": lambda n, t: t(4, n).unsqueeze(1),
    "squeeze": lambda n, t: t(4, 1, n).squeeze(1),
    "squeeze all": lambda n, t: t(4, 1, n).squeeze(),
    "expand": lambda n, t: t(1, n).expand(4, n),
    "expand to": lambda n, t: t(4, 1).expand(4, n),
    "slice off": lambda n, t: t(4, n + 1)[:, 1:],
    "slice to": lambda n, t: t(8, 4)[: n + 1],
    "slice in steps": lambda n, t: t(4, n + 4)[:, 1::2],
    "slice of a causal mask": lambda n, t: t(1, 1, 32, 32)[:, :, :n, :n],
    "select": lambda n, t: t(4, n + 1)[:, -1],
    "narrow": lambda n, t: t(4, n + 3).narrow(1, 2, n + 1),
    "write to a slice": lambda n, t: t(4, n + 1).slice_scatter(t(4, n), 1, 1, n + 1),
    "index_select": lambda n, t: t(5, n).index_select(0, t(3).abs().long() % 5),
    "gather": lambda n, t: t(5, n + 1).gather(1, t(5, 2).abs().long() % (n + 1)),
    "tril": lambda n, t: t(n, n).tril(),
    "cumsum": lambda n, t: t(4, n).cumsum(1),
    "flip": lambda n, t: t(4, n).flip(1),
    "repeat": lambda n, t: t(4, n).repeat(1, 2),
    "split": lambda n, t: t(4, n, 6).split(2, -1),
    "chunk": lambda n, t: t(4, n + 4).chunk(2, 1),
    "unbind": lambda n, t: t(2, n).unbind(0),
    "pad": lambda n, t: F.pad(t(4, n), (1, 2)),
    "to": lambda n, t: t(4, n).to(torch.float64),
    "zeros_like": lambda n, t: torch.zeros_like(t(4, n)),
    "new_ones": lambda n, t: t(4, n).new_ones(n, 3),
    "outer": lambda n, t: t(n)[:, None] * t(n)[None],
    "cross_entropy": lambda n, t: F.cross_entropy(t(n + 1, 5), t(n + 1).abs().long() % 5),
    "attention": lambda n, t: F.scaled_dot_product_attention(
        t(2, 2, n + 1, 4), t(2, 2, n + 1, 4), t(2, 2, n + 1, 4), is_causal=True),
    "attention with a cache": lambda n, t: F.scaled_dot_product_attention(
        t(2, 2, 1, 4), t(2, 2, n + 1, 4), t(2, 2, n + 1, 4)),
    "conv1d": lambda n, t: F.conv1d(t(2, 3, n + 4), t(4, 3, 3)),
    "max_pool": lambda n, t: F.max_pool1d(t(2, 3, n + 4), 2),
}  # fmt: skip
# Their meta kernels ask for numbers, or for more than a formula can say.
WORKED_OUT_EACH_TIME = {"pad"}
PLAIN_SIZES = [2, 3, 5, 10, 13, 4, 7, 1, 0, 6, 8, 1, 9, 12, 2, 0, 11]


def tensors(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def strides_that_count(tensor):
    """PyTorch's meta kernels give another stride to a dim of one element, which no one reads."""
    if tensor.numel() == 0:
        return []
    return [s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def check(operator, n, make):
    expected = tensors(operator(n, randn))
    found = tensors(operator(n, make))
    for e, f in zip(expected, found, strict=True):
        assert (f.shape, f.dtype) == (e.shape, e.dtype), n
        assert strides_that_count(f) == strides_that_count(e), (n, e.shape)
        assert f.storage_offset() == e.storage_offset()
        torch.testing.assert_close(f.cpu(), e, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", list(OPERATORS))
def test_new_sizes(name):
    for n in PLAIN_SIZES[:5]:
        check(OPERATORS[name], n, lambda *sizes: randn(*sizes).to("dtorch"))
    before = counts()
    for n in PLAIN_SIZES[5:]:
        check(OPERATORS[name], n, lambda *sizes: randn(*sizes).to("dtorch"))
    misses, new_sizes = (b - a for a, b in zip(before, counts(), strict=True))
    if name not in WORKED_OUT_EACH_TIME:
        assert new_sizes > 0
        assert misses <= 20  # of sizes 0 and 1, which are families of their own


LAYOUTS = {
    "rows": ((3,), lambda ndim: [Shard(0)]),
    "last": ((2,), lambda ndim: [Shard(ndim - 1)]),
    "second": ((3,), lambda ndim: [Shard(min(1, ndim - 1))]),
    "mesh": ((2, 2), lambda ndim: [Shard(0), Shard(ndim - 1)]),
    "whole and rows": ((2, 2), lambda ndim: [Replicate(), Shard(0)]),
}


@pytest.mark.parametrize("layout", [
    pytest.param(name, marks=pytest.mark.sweep if name != "second" else ()) for name in LAYOUTS
])  # fmt: skip
def test_new_sizes_of_shards(layout):
    """All operators in one job: what one leaves in the caches is there for the next."""
    shape, placements = LAYOUTS[layout]
    dt.shutdown()
    dt.init(workers=torch.Size(shape).numel())
    mesh = dt.init_device_mesh(shape)

    def make(*sizes):
        return dt.distribute_tensor(randn(*sizes), mesh, placements(len(sizes)))

    wrong = []
    for name, operator in OPERATORS.items():
        for n in [2, 3, 4, 6, 5, 8, 1, 7, 12, 0, 16, 9, 10, 15, 24]:
            try:
                check(operator, n, make)
            except Exception as error:
                wrong.append((name, n, str(error)[:300]))
                break
    new_sizes = counts()[1]
    dt.shutdown()
    assert not wrong, wrong
    assert new_sizes > 100


def programs(rng):
    """Sizes that are related in one call and not in the next."""
    a, b, c = (rng.choice([0, 1, 2, 2, 3, 3, 4, 5, 6, 8, 12]) for _ in range(3))
    equal = rng.random() < 0.5
    return {
        "add": lambda t: t(a, b) + t(a if equal else 1, b),
        "add of a slice": lambda t: t(a, b + c)[:, c:] + t(a, b),
        "matmul": lambda t: t(a, b) @ t(b, c),
        "matmul of views": lambda t: t(b, a).t() @ t(c, b).t(),
        "cat": lambda t: torch.cat([t(a, b), t(a, c)], 1),
        "view": lambda t: t(a * c, b).view(a, c, b) if c else t(a, b),
        "heads": lambda t: t(a, b, 2 * c).view(a, b, 2, c).transpose(1, 2),
        "strided": lambda t: F.relu(t(a, b, c).permute(2, 0, 1)),
        "mixed strides": lambda t: t(a, b, c).permute(1, 2, 0) * t(b, c, a),
        "expanded": lambda t: t(1, b, 1).expand(a, b, c).clone(),
        "sum": lambda t: t(a, b, c).sum(rng_dim, keepdim=equal),
        "slice": lambda t: t(a, b + c)[:, min(b, c):],
        "reshape": lambda t: t(a, b, c).transpose(0, 2).reshape(c * b, a),
    }  # fmt: skip


rng_dim = 1


@pytest.mark.parametrize("seed", range(4))
def test_random_sizes(seed):
    rng = random.Random(seed)
    before = counts()
    for _ in range(150):
        name, operator = rng.choice(list(programs(rng).items()))
        check(lambda n, t, run=operator: run(t), name, lambda *s: randn(*s).to("dtorch"))
    assert counts()[1] > before[1]


def test_sizes_that_do_not_fit_raise_at_once():
    for n in (2, 3, 4, 7, 8):
        torch.ones(n, 4, device="dtorch") + torch.ones(n, 4, device="dtorch")
        torch.ones(n, 4, device="dtorch") @ torch.ones(4, n, device="dtorch")
        torch.ones(4, n, device="dtorch").view(2 * n, 2)
        torch.cat([torch.ones(n, 4, device="dtorch"), torch.ones(n, 4, device="dtorch")], 1)
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.ones(5, 4, device="dtorch") + torch.ones(6, 4, device="dtorch")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.ones(5, 4, device="dtorch") @ torch.ones(5, 4, device="dtorch")
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        torch.ones(4, 5, device="dtorch").view(12, 2)
    with pytest.raises(RuntimeError, match="[Ss]izes of tensors must match"):
        torch.cat([torch.ones(5, 4, device="dtorch"), torch.ones(6, 4, device="dtorch")], 1)


def test_no_python_runs_for_a_new_size():
    tensors = [torch.ones(4, n, 6, device="dtorch") for n in range(2, 40)]
    weight = torch.ones(6, device="dtorch")
    gelu, layer_norm, cat = torch._C._nn.gelu, torch.layer_norm, torch.cat

    def body():
        for x in tensors[5:]:
            cat([layer_norm(gelu(x), (6,), weight, weight), x], 1).transpose(1, 2)

    for x in tensors[:5]:
        cat([layer_norm(gelu(x), (6,), weight, weight), x], 1).transpose(1, 2)
    before = counts()
    assert [call for call in python_calls_while(body) if call[0] != __file__] == []
    assert counts()[0] == before[0]
    assert counts()[1] > before[1]
