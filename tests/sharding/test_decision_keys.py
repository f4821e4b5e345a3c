"""Decisions serve other sizes: right on each, and made a few times only."""

import pytest
import torch
from simulate import Placed, check, make_mesh
from torch.distributed.tensor import Partial, Replicate, Shard

from dtorch_mpi.sharding.propagator import clear_cache, num_decisions

aten = torch.ops.aten
R, S0, S1, S2, P = Replicate(), Shard(0), Shard(1), Shard(2), Partial("sum")


def randn(*sizes):
    return torch.randn(*sizes, dtype=torch.float64)


LONGER = {
    "view joins": lambda n: (aten.view.default, Placed(randn(4, n, 8), [S0, R]), [4 * n, 8]),
    "view splits": lambda n: (aten.view.default, Placed(randn(4 * n, 8), [S0, R]), [4, n, 8]),
    "heads": lambda n: (aten.view.default, Placed(randn(4, n, 8), [S0, S2]), [4, n, 4, 2]),
    "transpose": lambda n: (aten.transpose.int, Placed(randn(4, n, 4, 2), [S0, S2]), 1, 2),
    "gelu": lambda n: (aten.gelu.default, Placed(randn(4, n, 8), [S0, S2])),
    "mm": lambda n: (aten.mm.default, Placed(randn(4 * n, 8), [S0, R]),
                     Placed(randn(8, 6), [R, S1])),
    "sum": lambda n: (aten.sum.dim_IntList, Placed(randn(4, n, 8), [S0, S2]), [-1]),
    "mean": lambda n: (aten.mean.dim, Placed(randn(4, n, 8), [S0, R]), [0, 2]),
    "amax": lambda n: (aten.amax.default, Placed(randn(4, n, 8), [S0, R]), [2]),
    "softmax": lambda n: (aten._softmax.default, Placed(randn(4, n, n), [S0, R]), -1, False),
}  # fmt: skip


@pytest.mark.parametrize("name", list(LONGER))
def test_a_longer_sequence_is_no_new_call(name):
    mesh = make_mesh(2, 2)
    clear_cache()
    made = []
    for length in range(2, 20):
        op, *args = LONGER[name](length)
        check(op, args, mesh=mesh)
        made.append(num_decisions())
    assert made[-1] == made[2]


@pytest.mark.parametrize("inner", [1, 2, 3])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_joined_rows_of_any_number(workers, inner):
    mesh = make_mesh(workers)
    for order in (range(1, 17), range(16, 0, -1)):
        clear_cache()
        for rows in order:
            for placement in (S0, S1, P):
                given = Placed(randn(rows, inner, 2), [placement])
                check(aten.view.default, (given, [rows * inner, 2]), mesh=mesh)
                back = Placed(randn(rows * inner, 2), [placement])
                check(aten.view.default, (back, [rows, inner, 2]), mesh=mesh)
