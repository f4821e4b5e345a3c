"""Indexing: reading and writing, with everything that PyTorch takes as an index."""

import pytest
import torch
from parity import same, same_with_gradients, seeded

import dtorch_mpi as dt

X = seeded(6, 5, 4)

INDICES = {
    "int": lambda d: 2,
    "negative": lambda d: -1,
    "pair": lambda d: (1, 3),
    "slice": lambda d: slice(1, 5, 2),
    "slices": lambda d: (slice(None), slice(2, None), slice(None, -1)),
    "none": lambda d: (None, 1, None),
    "ellipsis": lambda d: (..., 2),
    "ellipsis and none": lambda d: (0, ..., None),
    "list": lambda d: [0, 3, 3],
    "bool": lambda d: True,
    "mask": lambda d: (X[:, 0, 0] > 0).to(d),
    "whole mask": lambda d: (X > 0).to(d),
    "mask and slice": lambda d: (slice(1, None), (X[0, :, 0] > 0).to(d)),
    "index tensor": lambda d: torch.tensor([1, 0, -1], device=d),
    "host index tensor": lambda d: torch.tensor([1, 0, -1]),
    "host mask": lambda d: X[:, 0, 0] > 0,
    "two index tensors": lambda d: (torch.tensor([0, 1], device=d), torch.tensor([2, 3], device=d)),
    "broadcast": lambda d: (torch.tensor([[0], [1]], device=d), torch.tensor([2, 3], device=d)),
    "index between slices": lambda d: (slice(0, 2), torch.tensor([1, 2], device=d), slice(1, 3)),
    "indices apart": lambda d: (
        torch.tensor([0, 1], device=d),
        slice(None),
        torch.tensor([2, 3], device=d),
    ),
    "int32": lambda d: torch.tensor([1, 2], dtype=torch.int32, device=d),
    "scalar tensor": lambda d: torch.tensor(3, device=d),
    "scalar host tensor": lambda d: torch.tensor(3),
    "int and index": lambda d: (1, torch.tensor([0, 2], device=d)),
    "empty list": lambda d: [],
    "range": lambda d: range(2),
}


@pytest.mark.parametrize("name", INDICES)
def test_read(name):
    same(lambda x: x[INDICES[name](x.device)], X)


@pytest.mark.parametrize("name", INDICES)
def test_write(name):
    def body(x):
        x = x.clone()
        index = INDICES[name](x.device)
        x[index] = 2.5
        x[index] = torch.ones_like(x[index])
        x[index] = torch.tensor(7.0)
        x[index] += 1
        return x

    same(body, X)


@pytest.mark.parametrize("name", INDICES)
def test_gradient(name):
    same_with_gradients(lambda x: x[INDICES[name](x.device)] * 3, X.clone().requires_grad_())


def test_write_of_a_host_tensor():
    y = torch.arange(4.0)

    def body(x):
        x = x.clone()
        x[1, 2] = y
        x[0] = y
        return x

    same(body, X)


def test_index_operators():
    def body(x):
        index = torch.tensor([0, 2], device=x.device)
        return (
            x.index_select(1, index),
            x.take(index),
            torch.take_along_dim(x, x.argsort(2), 2),
            x.index_copy(0, index, x[3:5]),
            x.index_put((index,), x[0], accumulate=True),
            x.masked_scatter(x > 0, x.flip(0)),
            x.scatter_add(2, x.argsort(2), x),
            x.select_scatter(x[0], 0, 3),
            x.slice_scatter(x[:2], 0, 1, 3),
        )

    same(body, X)


def test_iteration_and_negative_strides():
    same(lambda x: ([row for row in x], x.flip(0)[::2], list(x[0, 0])), X)


@pytest.mark.parametrize("index", [6, -7, (0, 5), (0, 0, 0, 0)])
def test_out_of_range_is_told_at_once(index):
    with pytest.raises(IndexError) as expected:
        X[index]
    x = X.to("dtorch")
    for position in range(6):
        x[position]
    with pytest.raises(IndexError) as found:
        x[index]
    assert str(found.value) == str(expected.value)


def test_shape_mismatch_on_write():
    with pytest.raises(RuntimeError) as expected:
        X.clone()[0] = torch.ones(3)
    x = X.to("dtorch")
    with pytest.raises(RuntimeError) as found:
        x[0] = torch.ones(3, device="dtorch")
    assert str(found.value) == str(expected.value)


def test_each_position_does_not_miss_the_cache():
    x = torch.arange(512.0).to("dtorch")
    x[3], x[1:3], x[7].add(1), x[2:4].add(1)
    before = dt.debug.counters()["misses"]
    rows = [x[i].add(1) for i in range(100, 400)]
    parts = [x[i : i + 2].add(1) for i in range(100, 400)]
    assert dt.debug.counters()["misses"] - before < 10
    torch.testing.assert_close(torch.stack(rows).cpu(), torch.arange(101.0, 401))
    torch.testing.assert_close(torch.stack(parts)[:, 1].cpu(), torch.arange(102.0, 402))
