"""Embedding with the vocabulary cut: right values, and no worker has the whole table."""

import pytest
import torch
import torch.nn.functional as F

import dtorch_mpi as dt

R, S0, S1 = dt.Replicate(), dt.Shard(0), dt.Shard(1)


@pytest.fixture(scope="module", params=[(3,), (2, 2)], ids=str)
def mesh(request):
    dt.shutdown()
    shape = request.param
    dt.init(workers=3 if shape == (3,) else 4)
    yield dt.init_device_mesh(shape)
    dt.shutdown()


def layouts(mesh):
    if mesh.ndim == 1:
        return [([S0], [R]), ([S0], [S0]), ([S0], [S1])]
    return [([S0, S0], [R, R]), ([R, S0], [S0, R]), ([S0, S1], [S0, R]), ([S0, S0], [S0, S1]),
            ([S0, S1], [S0, S1])]


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("rows", [12, 10, 2])
@pytest.mark.parametrize("padding_idx", [None, 1])
def test_forward_and_backward(mesh, which, rows, padding_idx):
    if which >= len(layouts(mesh)):
        pytest.skip("fewer layouts on this mesh")
    table_layout, batch_layout = layouts(mesh)[which]
    torch.manual_seed(0)
    weight, indices = torch.randn(rows, 6), torch.randint(0, rows, (4, 5))
    expected = weight.clone().requires_grad_()
    wanted = F.embedding(indices, expected, padding_idx=padding_idx)
    ramp = torch.linspace(0.5, 1.5, wanted.numel()).view(wanted.shape)
    (wanted * ramp).sum().backward()

    before = dt.debug.fallbacks()
    table = dt.distribute_tensor(weight, mesh, table_layout).requires_grad_()
    found = F.embedding(
        dt.distribute_tensor(indices, mesh, batch_layout), table, padding_idx=padding_idx
    )
    (found * dt.distribute_tensor(ramp, mesh, [R] * mesh.ndim)).sum().backward()
    torch.testing.assert_close(found.detach().cpu(), wanted.detach())
    torch.testing.assert_close(table.grad.cpu(), expected.grad)
    assert [entry for entry in dt.debug.fallbacks() if entry not in before] == []
    # Where the indices are the same on all workers of an axis, each makes its own rows' gradient.
    for cut, place, grad in zip(table_layout, batch_layout, table.grad.placements, strict=True):
        assert grad == S0 or cut != S0 or place != R


def test_how_often_an_index_occurs_is_counted_over_the_batch(mesh):
    torch.manual_seed(0)
    weight, indices = torch.randn(10, 6), torch.randint(0, 4, (8,))
    expected = weight.clone().requires_grad_()
    F.embedding(indices, expected, scale_grad_by_freq=True).sum().backward()
    for lies, places in ([S0, R], [R, R]), ([S0, S0], [S0, R]), ([S0, R], [S0, S0]):
        table = dt.distribute_tensor(weight, mesh, lies[: mesh.ndim]).requires_grad_()
        given = dt.distribute_tensor(indices, mesh, places[: mesh.ndim])
        F.embedding(given, table, scale_grad_by_freq=True).sum().backward()
        torch.testing.assert_close(table.grad.cpu(), expected.grad)


@pytest.mark.asserts_on_device
@pytest.mark.parametrize("index", [10, -1])
def test_an_index_beyond_the_table_is_an_error(mesh, index):
    table = dt.distribute_tensor(torch.randn(10, 6), mesh, [S0, R][: mesh.ndim])
    indices = dt.distribute_tensor(torch.tensor([3, index]), mesh, [R] * mesh.ndim)
    with pytest.raises((dt.WorkerError, IndexError), match="index out of range in self"):
        F.embedding(indices, table).cpu()


def test_one_index(mesh):
    weight = torch.randn(10, 6)
    table = dt.distribute_tensor(weight, mesh, [S0, S1][: mesh.ndim]).requires_grad_()
    index = dt.distribute_tensor(torch.tensor(7), mesh, [R] * mesh.ndim)
    found = F.embedding(index, table)
    torch.testing.assert_close(found.detach().cpu(), weight[7])
    found.backward(torch.ones(6, device="dtorch"))
    expected = torch.zeros(10, 6)
    expected[7] = 1
    torch.testing.assert_close(table.grad.cpu(), expected)
