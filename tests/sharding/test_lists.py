"""Operators over lists, element by element, and the caches."""

import time

import pytest
import torch
from simulate import Placed, check, make_mesh, sharding_of, to_meta
from torch.distributed.tensor import Partial, Replicate, Shard

from dtorch_mpi.sharding import propagator, torch_rules
from dtorch_mpi.sharding.lists import element_operator
from dtorch_mpi.sharding.op_sharding import ShardedMeta
from dtorch_mpi.sharding.propagator import propagate

aten = torch.ops.aten
R, S0, S1, P = Replicate(), Shard(0), Shard(1), Partial("sum")
MESH = make_mesh(2)


def placed(*layouts, positive=False):
    torch.manual_seed(len(layouts))
    made = [torch.randn(5, 4, dtype=torch.float64) for _ in layouts]
    return [
        Placed(t.abs() + 0.1 if positive else t, (layout,))
        for t, layout in zip(made, layouts, strict=True)
    ]


@pytest.mark.parametrize(
    "op,rest",
    [
        (aten._foreach_add_.Scalar, (1,)),
        (aten._foreach_mul_.Scalar, (0.5,)),
        (aten._foreach_mul.ScalarList, ([0.5, 2.0, 3.0, 4.0],)),
        (aten._foreach_sqrt.default, ()),
        (aten._foreach_neg_.default, ()),
        (aten._foreach_norm.Scalar, (2,)),
        (aten._foreach_pow.Scalar, (2,)),
        (aten._foreach_zero_.default, ()),
        (aten._foreach_clamp_min_.Scalar, (0.5,)),
    ],
    ids=str,
)
def test_one_list(op, rest):
    check(op, (placed(R, S0, S1, P, positive=True), *rest), mesh=MESH)


@pytest.mark.parametrize(
    "op,rest,num_lists",
    [
        (aten._foreach_add_.List, (), 2),
        (aten._foreach_mul.List, (), 2),
        (aten._foreach_copy_.default, (), 2),
        (aten._foreach_div_.List, (), 2),
        (aten._foreach_lerp_.Scalar, (0.1,), 2),
        (aten._foreach_maximum_.List, (), 2),
        (aten._foreach_addcmul_.Scalar, (0.1,), 3),
        (aten._foreach_addcdiv_.ScalarList, ([0.1, 0.2, 0.3, 0.4],), 3),
    ],
    ids=str,
)
def test_lists_in_step(op, rest, num_lists):
    lists = [
        placed(R, S0, S1, P),
        placed(S0, R, S0, P, positive=True),
        placed(P, P, S1, R, positive=True),
    ][:num_lists]
    decision = check(op, (*lists, *rest), mesh=MESH)
    # Elements that agree stay where they are, whatever the others need. The whole-mesh rules that
    # torch 2.11 has for this reduce sums first.
    if op is aten._foreach_add_.List and torch_rules.has_axis_rules(aten.add_.Tensor):
        assert decision.inputs[3] == decision.inputs[7] == (P,)


def test_a_scale_for_all():
    scale = Placed(torch.tensor(0.5, dtype=torch.float64), (R,))
    check(aten._foreach_mul_.Tensor, (placed(R, S0, S1, P), scale), mesh=MESH)


def test_every_arithmetic_list_operator_has_its_element():
    for name in ("add_.List", "sub.Scalar", "mul_.ScalarList", "div_.Tensor", "pow.List",
                 "addcdiv_.Tensor", "lerp_.List", "norm.Scalar", "clamp_max.List", "exp.default"):
        packet, overload = name.split(".")
        assert element_operator(getattr(getattr(aten, f"_foreach_{packet}"), overload)), name


def test_sizes_of_one_class_share_a_decision():
    propagator.clear_cache()
    for length in range(5, 65):
        full = torch.zeros(4, length, 8)
        args = (Placed(full, (S0,)), Placed(full, (S0,)))
        assert sharding_of(aten.add.Tensor, args, {}, MESH, [full]).outputs == [(S0,)]
        row = full[:, -1]
        for index in (length - 1, -1):
            decision = sharding_of(aten.select.int, (args[0], 1, index), {}, MESH, [row])
            assert decision.outputs == [(S0,)]
    assert len(propagator._cache) < 10


def test_a_long_list_is_quick_once_known():
    full = torch.zeros(8, 8)
    tensors = [ShardedMeta(to_meta(full), MESH, (S0,)) for _ in range(30)]
    outputs = []
    propagate(aten._foreach_add_.List, (tensors, tensors), {}, outputs)
    start = time.perf_counter()
    propagate(aten._foreach_add_.List, (tensors, tensors), {}, outputs)
    assert time.perf_counter() - start < 0.02


def test_meshes_do_not_mix():
    full = torch.zeros(4)
    one, other = ShardedMeta(full, MESH, (S0,)), ShardedMeta(full, make_mesh(4), (S0,))
    with pytest.raises(ValueError, match="expected all inputs on one mesh"):
        propagate(aten.add.Tensor, (one, other), {}, [full])
    with pytest.raises(ValueError, match="no distributed input"):
        propagate(aten.arange.default, (4,), {}, [full])
