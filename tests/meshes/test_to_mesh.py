"""Tensors that go from one mesh to another, against plain PyTorch."""

import itertools

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi import Partial, Replicate, Shard


@pytest.fixture(scope="module")
def mesh():
    dt.shutdown()
    dt.init(workers=4)
    yield dt.init_device_mesh((2, 2), mesh_dim_names=("pp", "dp"))
    dt.shutdown()


def placements(ndim, dims):
    return itertools.product([Replicate(), *map(Shard, range(dims))], repeat=ndim)


@pytest.mark.parametrize("shape", [(5, 3), (4, 4), (1, 7), (0, 2)])
def test_every_placement_to_every_other(mesh, shape):
    value = torch.randn(shape)
    source, goal = mesh["pp", 0], mesh["pp", 1]
    for before, after in itertools.product(placements(1, 2), placements(1, 2)):
        x = dt.distribute_tensor(value, source, before)
        y = x.to_mesh(goal, after)
        assert y.device_mesh is goal and y.placements == tuple(after)
        torch.testing.assert_close((y * 2).to_torch(), value * 2)
        torch.testing.assert_close(y.to_mesh(source).to_torch(), value)


def test_between_meshes_that_overlap(mesh):
    value = torch.arange(30.0).reshape(6, 5)
    row, column = mesh["pp", 0], mesh["dp", 1]
    for before, after in itertools.product(placements(1, 2), placements(1, 2)):
        x = dt.distribute_tensor(value, row, before)
        torch.testing.assert_close(x.to_mesh(column, after).to_torch(), value)
    for before, after in itertools.product(placements(2, 2), placements(1, 2)):
        x = dt.distribute_tensor(value, mesh, before)
        y = x.to_mesh(column, after)
        torch.testing.assert_close(y.to_torch(), value)
        torch.testing.assert_close(y.to_mesh(mesh, before).to_torch(), value)
    one = mesh["pp", 1]["dp", 0]
    x = dt.distribute_tensor(value, one)
    torch.testing.assert_close(x.to_mesh(row, [Shard(1)]).to_torch(), value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.int64])
def test_dtypes(mesh, dtype):
    value = torch.randn(3, 4).to(dtype)
    x = dt.distribute_tensor(value, mesh["pp", 0], [Shard(0)])
    torch.testing.assert_close(x.to_mesh(mesh["pp", 1], [Shard(1)]).to_torch(), value)


def test_dims_keep_their_order_in_memory(mesh):
    value = torch.randn(4, 6).t()
    x = dt.distribute_tensor(value, mesh["pp", 0], [Shard(0)])
    y = x.to_mesh(mesh["pp", 1], [Shard(1)])
    assert y.stride() == value.stride()
    torch.testing.assert_close(y.t().view(-1).to_torch(), value.t().reshape(-1))


def test_partial_sums_are_summed_first(mesh):
    value = torch.randn(4, 3)
    x = dt.distribute_tensor(value, mesh["pp", 0], [Shard(0)])
    total = x.t() @ x
    assert isinstance(total.placements[0], Partial)
    moved = total.to_mesh(mesh["pp", 1], [Shard(0)])
    torch.testing.assert_close(moved.to_torch(), value.t() @ value)
    with pytest.raises(ValueError, match="partial sums"):
        x.to_mesh(mesh["pp", 1], [Partial()])


def test_the_gradient_goes_back(mesh):
    first, second = mesh["pp", 0], mesh["pp", 1]
    value, weight = torch.randn(4, 3), torch.randn(3, 2)

    def loss(x, w, there):
        return (there(x.sin()) @ w).square().sum()

    plain = [value.clone().requires_grad_(), weight.clone().requires_grad_()]
    loss(*plain, lambda t: t).backward()
    x = dt.distribute_tensor(value, first, [Shard(0)]).requires_grad_()
    w = dt.distribute_tensor(weight, second, [Replicate()]).requires_grad_()
    loss(x, w, lambda t: t.to_mesh(second, [Shard(0)])).backward()
    assert x.grad.device_mesh is first and w.grad.device_mesh is second
    torch.testing.assert_close(x.grad.to_torch(), plain[0].grad)
    torch.testing.assert_close(w.grad.to_torch(), plain[1].grad)
    # Of a tensor that every worker holds, every worker gets the gradient.
    x = value.to("dtorch").requires_grad_()
    loss(x, w, lambda t: t.to_mesh(second, [Shard(0)])).backward()
    torch.testing.assert_close(x.grad.to_torch(), plain[0].grad)
    with torch.no_grad():
        x -= x.grad
    torch.testing.assert_close(dt.local_shards(x), [value - plain[0].grad] * 4)


def test_a_failure_comes_along(mesh):
    first, second = mesh["pp", 0], mesh["pp", 1]
    index = dt.distribute_tensor(torch.tensor([0, 1, 2, 99]), first, [Shard(0)])
    table = dt.distribute_tensor(torch.randn(4, 2), first)
    rows = torch.nn.functional.embedding(index, table)
    moved = rows.to_mesh(second, [Shard(0)]) + 1
    with pytest.raises(dt.WorkerError, match="embedding"):
        moved.to_torch()
    dt.sync()  # was told
    torch.testing.assert_close((table + 1).to_mesh(second).to_torch(), table.to_torch() + 1)


def test_what_cannot_be(mesh):
    first, second = mesh["pp", 0], mesh["pp", 1]
    x, y = (dt.distribute_tensor(torch.ones(4), m) for m in (first, second))
    with pytest.raises(ValueError, match="to_mesh"):
        x + y
    with pytest.raises(ValueError, match="to_mesh"):
        x.redistribute(second, [Shard(0)])
    everywhere = torch.zeros(4, device="dtorch")
    with pytest.raises(ValueError, match="writes to a tensor that every worker holds"):
        everywhere.add_(x)
    torch.testing.assert_close((everywhere + x).to_torch(), torch.ones(4))
    with pytest.raises(ValueError, match="name one by its index"):
        mesh["pp"]
    with pytest.raises(ValueError, match="no axis named"):
        mesh["tp", 0]
    with pytest.raises(ValueError, match="below 2"):
        mesh["pp", 2]


def test_replayed(mesh):
    first, second = mesh["pp", 0], mesh["pp", 1]
    value = torch.randn(4, 4)
    x = dt.distribute_tensor(value, first, [Shard(0)])
    before = dt.debug.counters()["replays"]
    for step in range(8):
        if step == 5:
            dt.sync()
            dt.runtime.current().main.planner.wait()
        y = x * step
        for _ in range(3):
            y = (y.to_mesh(second) + 1).to_mesh(first, [Shard(1)]).sin()
        expected = value * step
        for _ in range(3):
            expected = (expected + 1).sin()
        torch.testing.assert_close(y.to_torch(), expected)
    assert dt.debug.counters()["replays"] > before


def test_many_at_once_both_ways(mesh):
    first, second = mesh["pp", 0], mesh["pp", 1]
    values = [torch.full((1000,), float(i)) for i in range(40)]
    xs = [dt.distribute_tensor(v, (first, second)[i % 2]) for i, v in enumerate(values)]
    ys = [x.to_mesh((second, first)[i % 2]) for i, x in enumerate(xs)]
    for i, y in enumerate(ys):
        assert y.sum().item() == 1000.0 * i
