"""List operators in place whose lists share tensors, or parts of them, on unlike placements."""

import itertools

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi import Partial, Replicate, Shard

MESH = (3,)

aten = torch.ops.aten
LAYOUTS = [Replicate(), Shard(0), Shard(1), Partial()]
IN_PLACE = [
    getattr(packet, overload)
    for name in sorted({*dir(torch._C._VariableFunctions), "_foreach_copy_"})
    if name.startswith("_foreach_") and name.endswith("_")
    for packet in [getattr(aten, name)]
    for overload in packet.overloads()
    if not overload.endswith("out")
]


def placed(tensor, mesh, layout):
    whole = dt.distribute_tensor(tensor.clone(), mesh, [Replicate()])
    return whole.redistribute(placements=[layout])


def numbers(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(5, 4, dtype=torch.float64, generator=generator) + 0.5


def crossing(op, x, y, z):
    """Arguments of `op` whose lists have x, y and z in unlike order, and x twice in each."""
    lists = itertools.cycle([[x, y, z, x], [y, z, x, x], [z, x, y, x]])
    args = []
    for argument in op._schema.arguments:
        if argument.kwarg_only or argument.has_default_value():
            break
        kind = str(argument.type)
        if kind == "List[Tensor]":
            args.append(next(lists))
        elif kind == "List[number]":
            args.append([0.5, 1.5, 2.0, 0.75])
        elif kind == "Tensor":
            is_listed = argument.name == "scalars"
            args.append(torch.tensor([0.5, 1.5, 2.0, 0.75] if is_listed else 1.5,
                                     dtype=torch.float64))
        else:
            args.append(1.5)
    return args


def check(body, mesh, layouts):
    plain = [numbers(seed) for seed in range(3)]
    found = [placed(tensor, mesh, layout) for tensor, layout in zip(plain, layouts, strict=True)]
    body(*plain)
    body(*found)
    for expected, tensor in zip(plain, found, strict=True):
        torch.testing.assert_close(tensor.cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("op", IN_PLACE, ids=str)
def test_lists_that_cross(op, mesh):
    for layouts in itertools.product(LAYOUTS, [Shard(0), Partial()], [Replicate(), Shard(1)]):
        check(lambda x, y, z: op(*crossing(op, x, y, z)), mesh, layouts)


@pytest.mark.parametrize("layouts", itertools.product(LAYOUTS, repeat=2), ids=str)
def test_lists_of_parts(layouts, mesh):
    def body(x, y, z):
        torch._foreach_add_([x[1:], x, y[0], z], [y[1:], y, x[0], x])
        torch._foreach_mul_([x.t(), y.view(-1)], [y.t(), x.reshape(-1)])
        torch._foreach_copy_([y[1:3], z[:2]], [x[:2], y[1:3]])
        torch._foreach_sub_([x, x.view(-1)[3:7]], 1)

    check(body, mesh, (*layouts, Shard(0)))


def test_lists_of_distinct_tensors_stay_one_call(mesh):
    lists = [[placed(numbers(seed), mesh, Shard(0)) for seed in range(20)] for _ in range(2)]
    torch._foreach_add_(*lists)
    before = dt.debug.counters()["operators"]
    torch._foreach_add_(*lists)
    assert dt.debug.counters()["operators"] == before + 1
