"""Writing to a sum that is not added up yet: it is reduced, written to, and a sum again."""

import pytest
import torch

import dtorch_mpi as dt

R, S0, P = dt.Replicate(), dt.Shard(0), dt.Partial()


def a_sum(mesh):
    """The sum over a dim that the second axis cuts, and its value."""
    torch.manual_seed(0)
    full = torch.randn(2, 4, 4)
    made = dt.distribute_tensor(full, mesh, [dt.Shard(1), dt.Shard(0)]).sum(0)
    assert made.placements == (S0, P)
    return made, full.sum(0)


@pytest.mark.parametrize(
    "write",
    [lambda x: x.add_(0.5), lambda x: x.fill_(3), lambda x: x.relu_()],
    ids=["add", "fill", "relu"],
)
def test_nothing_is_gathered(mesh, write):
    made, full = a_sum(mesh)
    before = dt.debug.fallbacks()
    write(made)
    write(full)
    assert made.placements == (S0, P)
    assert dt.debug.fallbacks() == before
    torch.testing.assert_close(made.cpu(), full)


@pytest.mark.parametrize(
    "write",
    [
        lambda x, y: torch._foreach_add_([x, x], 1.0),
        lambda x, y: torch._foreach_add_([x, y, x], [y, x, x]),
        lambda x, y: torch._foreach_addcmul_([x, x], [y, y], [x, x]),
        lambda x, y: torch._foreach_mul_([x, x], 2.0),
    ],
    ids=["number", "crossed", "read", "linear"],
)
def test_one_tensor_twice_in_a_list(mesh, write):
    (first, full), (second, other) = a_sum(mesh), a_sum(mesh)
    write(first, second)
    write(full, other)
    torch.testing.assert_close(first.cpu(), full)
    torch.testing.assert_close(second.cpu(), other)


@pytest.mark.parametrize("placements", [[R, R], [S0, R], [R, dt.Shard(1)], [S0, dt.Shard(1)]])
@pytest.mark.parametrize("batch", [[R, R], [S0, dt.Shard(2)], [dt.Shard(1), R]])
def test_addbmm_in_place(mesh, placements, batch):
    torch.manual_seed(0)
    first, second, full = torch.randn(3, 4, 2), torch.randn(3, 2, 5), torch.randn(4, 5)
    made = dt.distribute_tensor(full, mesh, placements)
    made.addbmm_(
        dt.distribute_tensor(first, mesh, batch), dt.distribute_tensor(second, mesh, [R, R])
    )
    torch.testing.assert_close(made.cpu(), full.addbmm(first, second))


@pytest.mark.parametrize("sizes", [(5,), (1, 5), (1,), ()], ids=str)
@pytest.mark.parametrize("placement", [R, S0], ids=str)
def test_addbmm_in_place_grows_what_broadcasts(mesh, sizes, placement):
    torch.manual_seed(0)
    first, second, full = torch.randn(3, 4, 2), torch.randn(3, 2, 5), torch.randn(sizes)
    made = dt.distribute_tensor(full, mesh, [placement if sizes else R, R])
    made.addbmm_(*(dt.distribute_tensor(t, mesh, [S0, R]) for t in (first, second)))
    expected = full.addbmm_(first, second)
    assert made.shape == expected.shape
    torch.testing.assert_close(made.cpu(), expected)
