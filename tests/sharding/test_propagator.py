"""Decisions on single operators, run shard by shard against the whole."""

import itertools

import pytest
import torch
from simulate import Placed, check, make_mesh
from torch.distributed.tensor import Partial, Replicate, Shard

aten = torch.ops.aten
R, S0, S1, S2, P = Replicate(), Shard(0), Shard(1), Shard(2), Partial("sum")
MESHES = [make_mesh(2), make_mesh(3), make_mesh(2, 2)]


@pytest.fixture(params=MESHES, ids=lambda m: str(tuple(m.shape)))
def mesh(request):
    return request.param


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def randn(*sizes):
    return torch.randn(*sizes, dtype=torch.float64)


def layouts(mesh, ndim):
    """All layouts of a tensor, sums among them."""
    kinds = [R, P, *(Shard(d) for d in range(ndim))]
    return itertools.product(kinds, repeat=mesh.ndim)


def pairs(mesh, first, second):
    """Some layouts of two tensors: all for one axis, a slanted choice for more."""
    options = list(itertools.product(layouts(mesh, first), layouts(mesh, second)))
    return options if mesh.ndim == 1 else options[::3]


ROWS = [6, 5, 1]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    "op,extra",
    [
        (aten.gelu.default, ()),
        (aten.relu.default, ()),
        (aten.neg.default, ()),
        (aten.add.Tensor, (1.0,)),
        (aten.mul.Tensor, (2.0,)),
        (aten.div.Tensor, (2.0,)),
        (aten.pow.Tensor_Scalar, (2,)),
        (aten.clone.default, ()),
        (aten.detach.default, ()),
        (aten.alias.default, ()),
        (aten.t.default, ()),
        (aten.transpose.int, (0, 1)),
        (aten.permute.default, ([1, 0],)),
        (aten.unsqueeze.default, (1,)),
        (aten.expand.default, ([2, -1, 4],)),
        (aten.sum.default, ()),
        (aten.sum.dim_IntList, ([0], True)),
        (aten.sum.dim_IntList, ([-1],)),
        (aten.mean.default, ()),
        (aten.mean.dim, ([0],)),
        (aten.amax.default, ([0],)),
        (aten.max.dim, (0,)),
        (aten.var_mean.correction, ([0],)),
        (aten.linalg_vector_norm.default, ()),
        (aten.linalg__powsum.default, (2,)),
        (aten._log_softmax.default, (-1, False)),
        (aten._log_softmax.default, (0, False)),
        (aten.slice.Tensor, (0, 0, 9223372036854775807)),
        (aten.slice.Tensor, (1, 1, 3)),
        (aten.slice.Tensor, (0, 0, 1)),
        (aten.select.int, (1, 2)),
        (aten.select.int, (0, -1)),
        (aten.split.Tensor, (2, -1)),
        (aten.split_with_sizes.default, ([1, 3], 1)),
        (aten.unbind.int, (0,)),
        (aten.unbind.int, (1,)),
        (aten.cumsum.default, (0,)),
        (aten.sort.default, (0,)),
        (aten.topk.default, (1, 1)),
        (aten.squeeze.default, ()),
        (aten.squeeze.dim, (0,)),
        (aten.zeros_like.default, ()),
        (aten.ones_like.default, ()),
        (aten.new_zeros.default, ([3, 4],)),
        (aten.tril.default, ()),
        (aten.constant_pad_nd.default, ([1, 1],)),
        (aten.flip.default, ([0],)),
        (aten.roll.default, ([1], [0])),
        (aten.argmax.default, (0,)),
        (aten._to_copy.default, ()),
        (aten.view.dtype, (torch.int64,)),
    ],
    ids=str,
)
def test_of_one_tensor(mesh, op, extra, rows):
    full = randn(rows, 4)
    for placements in layouts(mesh, 2):
        check(op, (Placed(full, placements), *extra), mesh=mesh)


@pytest.mark.parametrize(
    "op,extra",
    [
        (aten.neg.default, ()),
        (aten.exp.default, ()),
        (aten.mul.Tensor, (-1.0,)),
        (aten.add.Tensor, (1.0,)),
        (aten.add_.Tensor, (1.0,)),
        (aten.threshold.default, (0.0, 5.0)),
        (aten.sum.default, ()),
        (aten.amax.default, ([0],)),
        (aten.clone.default, ()),
        (aten.view.dtype, (torch.int64,)),
        (aten.view.default, ([3, 8],)),
        (aten._to_copy.default, ()),
        (aten.zero_.default, ()),
        (aten.zeros_like.default, ()),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_of_a_maximum_or_mean(mesh, op, extra, kind):
    for placements in itertools.product([R, S0, Partial(kind)], repeat=mesh.ndim):
        check(op, (Placed(randn(6, 4), placements), *extra), mesh=mesh)


@pytest.mark.parametrize(
    "op,extra",
    [
        (aten.zero_.default, ()),
        (aten.fill_.Scalar, (1.0,)),
        (aten.mul_.Scalar, (3.0,)),
        (aten.mul_.Tensor, (3.0,)),
        (aten.add_.Scalar, (3.0,)),
        (aten.add_.Tensor, (3.0,)),
        (aten.sqrt_.default, ()),
        (aten.clamp_min_.default, (0.5,)),
        (aten.cumsum_.default, (0,)),
        (aten.triu_.default, ()),
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [6, 5])
def test_in_place(mesh, op, extra, rows):
    full = randn(rows, 4).abs() + 1
    for placements in layouts(mesh, 2):
        check(op, (Placed(full, placements), *extra), mesh=mesh)


@pytest.mark.parametrize("rows", [6, 5])
@pytest.mark.parametrize(
    "op,other",
    [
        (aten.add.Tensor, (4,)),
        (aten.add.Tensor, (1, 4)),
        (aten.mul.Tensor, None),
        (aten.div.Tensor, None),
        (aten.sub_.Tensor, None),
        (aten.add_.Tensor, None),
        (aten.mul_.Tensor, None),
        (aten.copy_.default, None),
        (aten.copy_.default, (4,)),
        (aten.maximum.default, None),
        (aten.mm.default, (4, 3)),
        (aten.cat.default, None),
        (aten.stack.default, None),
        (aten.lerp_.Scalar, None),
        (aten.gelu_backward.default, None),
    ],
    ids=str,
)
def test_of_two_tensors(mesh, op, other, rows):
    first = randn(rows, 4)
    second = randn(*(first.shape if other is None else other))
    for one, two in pairs(mesh, 2, second.ndim):
        args = (Placed(first, one), Placed(second, two))
        if op in (aten.cat.default, aten.stack.default):
            args = (list(args),)
        elif op is aten.lerp_.Scalar:
            args = (*args, 0.3)
        check(op, args, mesh=mesh)


def test_addcmul_and_addmm(mesh):
    for one, two in pairs(mesh, 2, 2):
        made = [Placed(randn(5, 4), p) for p in (one, two, two)]
        check(aten.addcmul_.default, tuple(made), {"value": 0.5}, mesh)
        made = [Placed(randn(3), (R,) * mesh.ndim), Placed(randn(5, 4), one),
                Placed(randn(4, 3), two)]
        check(aten.addmm.default, tuple(made), mesh=mesh)


def test_bmm(mesh):
    for one, two in pairs(mesh, 3, 3):
        check(aten.bmm.default, (Placed(randn(4, 5, 2), one), Placed(randn(4, 2, 3), two)),
              mesh=mesh)


@pytest.mark.parametrize(
    "before,after",
    [
        ((6, 4), (24,)), ((6, 4), (2, 3, 4)), ((6, 4), (6, 2, 2)), ((5, 4), (20,)),
        ((5, 4), (5, 2, 2)), ((24,), (6, 4)), ((20,), (5, 4)), ((4, 6, 2), (24, 2)),
        ((4, 5, 6), (4, 5, 2, 3)), ((4, 5, 6), (20, 6)), ((2, 3), (3, 2)), ((6, 1), (6,)),
        ((1, 6), (6,)), ((6, 4), (4, 6)),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("op", [aten.view.default, aten._unsafe_view.default], ids=str)
def test_views(mesh, op, before, after):
    full = randn(*before)
    for placements in layouts(mesh, len(before)):
        check(op, (Placed(full, placements), list(after)), mesh=mesh)


def test_slice_and_select_backward(mesh):
    for placements in layouts(mesh, 2):
        check(aten.slice_backward.default,
              (Placed(randn(6, 2), placements), [6, 5], 1, 1, 3, 1), mesh=mesh)
        check(aten.slice_backward.default,
              (Placed(randn(6, 2), placements), [7, 2], 0, 1, 7, 1), mesh=mesh)
        check(aten.select_backward.default, (Placed(randn(6, 4), placements), [6, 3, 4], 1, 2),
              mesh=mesh)


def test_layer_norm(mesh):
    for placements in layouts(mesh, 3):
        for weight in ((R,) * mesh.ndim, (S0,) * mesh.ndim):
            x, w = Placed(randn(5, 3, 4), placements), Placed(randn(4), weight)
            b = Placed(randn(4), weight)
            check(aten.native_layer_norm.default, (x, [4], w, b, 1e-5), mesh=mesh)
            _, mean, rstd = aten.native_layer_norm(x.full, [4], w.full, b.full, 1e-5)
            rest = (R,) * mesh.ndim
            args = (Placed(randn(5, 3, 4), placements), x, [4], Placed(mean, rest),
                    Placed(rstd, rest), w, b, [True, True, True])
            check(aten.native_layer_norm_backward.default, args, mesh=mesh)


def test_embedding(mesh):
    indices = torch.randint(0, 7, (5, 4))
    for weight, index in pairs(mesh, 2, 2):
        if P in index:
            continue
        check(aten.embedding.default, (Placed(randn(7, 6), weight), Placed(indices, index)),
              mesh=mesh)
    for grad, index in pairs(mesh, 3, 2):
        if P in index:
            continue
        args = (Placed(randn(5, 4, 6), grad), Placed(indices, index), 7, -1, False)
        check(aten.embedding_dense_backward.default, args, mesh=mesh)


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_nll_loss(mesh, reduction):
    target = torch.tensor([1, 2, -100, 0, -100, 3])
    for scores, labels in pairs(mesh, 2, 1):
        if P in labels:
            continue
        x, y = Placed(randn(6, 5), scores), Placed(target, labels)
        # Without a reduction PyTorch leaves the total weight unset.
        compare = None if reduction else {0}
        check(aten.nll_loss_forward.default, (x, y, None, reduction, -100), mesh=mesh,
              compare=compare)
        out, total = aten.nll_loss_forward(x.full, target, None, reduction, -100)
        whole = (R,) * mesh.ndim
        args = (Placed(torch.randn(out.shape).double(), whole), x, y, None, reduction, -100,
                Placed(total, whole))
        check(aten.nll_loss_backward.default, args, mesh=mesh)


@pytest.mark.parametrize("mask", [None, (6, 6), (4, 1, 6, 6), (4, 2, 6, 6)], ids=str)
def test_attention(mesh, mask):
    query, key, value = (randn(4, 2, 6, 8) for _ in range(3))
    given = None if mask is None else randn(*mask)
    whole = (R,) * mesh.ndim
    kinds = [R, S0, S1, S2, P]
    for placements in itertools.product(kinds, repeat=mesh.ndim):
        q, k, v = (Placed(t, placements) for t in (query, key, value))
        named = {} if given is None else {"attn_mask": Placed(given, whole)}
        decision = check(aten._scaled_dot_product_flash_attention_for_cpu.default,
                         (q, k, v, 0.0, mask is None), named, mesh)
        if set(placements) <= {R, S0, S1} and len(mesh.shape) == 1 and mesh.size() == 2:
            assert not decision.fallback
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, mask is None, attn_mask=given
        )
        args = (Placed(randn(4, 2, 6, 8), placements), q, k, v, Placed(out, whole),
                Placed(lse, whole), 0.0, mask is None)
        check(aten._scaled_dot_product_flash_attention_for_cpu_backward.default, args, named, mesh)


@pytest.mark.parametrize("accumulate", [False, True])
def test_indexing(mesh, accumulate):
    index = torch.tensor([3, 0, 1, 3])
    for placements in layouts(mesh, 2):
        whole = (R,) * mesh.ndim
        check(aten.index.Tensor, (Placed(randn(6, 4), placements), [Placed(index, whole)]),
              mesh=mesh)
        check(aten.index_select.default, (Placed(randn(6, 4), placements), 0,
                                          Placed(index, whole)), mesh=mesh)
        check(aten.index_add_.default,
              (Placed(randn(6, 4), placements), 0, Placed(index, whole),
               Placed(randn(4, 4), whole)), mesh=mesh)
        check(aten.index_put_.default,
              (Placed(randn(6, 4), placements), [Placed(torch.tensor([1, 3]), whole)],
               Placed(randn(2, 4), whole), accumulate), mesh=mesh)


def test_gather_and_scatter(mesh):
    # 4, 8 and 12 rows can be cut alike by these meshes, so that only their being compared tells
    # them apart.
    for rows, taken in ((4, 4), (8, 4), (8, 8), (12, 4), (5, 5), (6, 5)):
        index = torch.randint(0, 4, (taken, 4))
        for source, lies in pairs(mesh, 2, 2):
            if P in lies:
                continue
            x, i = Placed(randn(rows, 4), source), Placed(index, lies)
            check(aten.gather.default, (x, 1, i), mesh=mesh)
            check(aten.scatter_add.default, (x, 1, i, Placed(randn(taken, 4), lies)), mesh=mesh)


def test_split_into_more(mesh):
    for rows in (4, 8, 12, 6):
        for placements in layouts(mesh, 2):
            check(aten.split.Tensor, (Placed(randn(rows, 4), placements), 2), mesh=mesh)


def test_batch_norm(mesh):
    for placements in layouts(mesh, 2):
        whole = (R,) * mesh.ndim
        args = (Placed(randn(6, 4), placements), Placed(randn(4), whole), Placed(randn(4), whole),
                Placed(randn(4), whole), Placed(randn(4).abs(), whole), True, 0.1, 1e-5)
        check(aten.native_batch_norm.default, args, mesh=mesh)


def test_convolution(mesh):
    for x, w in list(pairs(mesh, 3, 3))[:: 1 if mesh.ndim == 1 else 13]:
        args = (Placed(randn(4, 2, 7), x), Placed(randn(6, 2, 3), w),
                Placed(randn(6), (R,) * mesh.ndim), [1], [1], [1], False, [0], 1)
        check(aten.convolution.default, args, mesh=mesh)


@pytest.mark.parametrize("width", [8, 12, 16, 10])
def test_convolution_of_patches(mesh, width):
    weight = Placed(randn(3, 2, 4), (R,) * mesh.ndim)
    step = [[4], [0], [1], False, [0], 1]
    for x, grad in list(pairs(mesh, 3, 3))[:: 1 if mesh.ndim == 1 else 13]:
        image = Placed(randn(4, 2, width), x)
        check(aten.convolution.default, (image, weight, None, *step), mesh=mesh)
        check(aten.convolution_backward.default,
              (Placed(randn(4, 3, width // 4), grad), image, weight, None, *step,
               [True, True, False]), mesh=mesh)


def test_dropout_mask_of_replicas_and_shards(mesh):
    # Values are random; here only layouts and sizes are looked at.
    for placements in layouts(mesh, 2):
        decision = check(aten.native_dropout.default,
                         (Placed(randn(6, 4), placements), 0.5, True), mesh=mesh, compare=set())
        if P not in placements:
            assert decision.inputs == [placements] and decision.outputs == [placements] * 2
        check(aten.bernoulli_.float, (Placed(torch.zeros(6, 4), placements), 1.0), mesh=mesh)


def test_new_tensors_follow_their_source(mesh):
    sharded = (S0,) * mesh.ndim
    given = Placed(randn(12, 4), sharded)
    for op, args in ((aten.new_empty.default, ([12, 4],)),
                     (aten.new_empty_strided.default, ([12, 4], [1, 12])),
                     (aten.empty_like.default, ())):
        decision = check(op, (given, *args), mesh=mesh, compare=set())
        assert decision.outputs == [sharded] and not decision.fallback
        assert bool(decision.local_sizes) == bool(args)
    check(aten.new_zeros.default, (given, [12, 4]), mesh=mesh)
    check(aten.new_full.default, (given, [12, 4], 2.0), mesh=mesh)
