"""out= arguments stay the tensors they are and keep their placements, whichever operator writes."""

import warnings

import pytest
import torch
from placing import placed
from torch.utils._pytree import tree_leaves, tree_map

from dtorch_mpi import Partial, Replicate, Shard

pytest.importorskip("expecttest", reason="pip install expecttest: PyTorch's own databases need it")

from opdb_cases import (  # noqa: E402
    RANDOM,
    UNINITIALIZED,
    name_of,
    operators,
    placements_for_mesh,
    samples,
)

LAYOUTS = [
    [Replicate(), Replicate()], [Shard(0), Replicate()], [Shard(0), Shard(1)],
    [Shard(0), Shard(0)], [Partial(), Replicate()],
]
# Written in other ways: through views, after a measurement, by an operator of many results.
NAMES = {
    "kron", "matmul", "linalg.multi_dot", "svd", "linalg.svd", "linalg.qr", "add", "mm", "sort",
    "cat", "topk", "cumsum", "sum", "take_along_dim", "linalg.norm", "inner", "nanmean", "diff",
}
OPERATORS = [op for op in operators(torch.float32, "out")
             if op.name not in UNINITIALIZED | RANDOM and name_of(op) in NAMES]


def fitting(placements, tensor):
    """The placements, or none where the tensor can't have them."""
    has_sums = tensor.is_floating_point() or tensor.is_complex()
    fits = all(
        p.dim < tensor.ndim if p.is_shard() else has_sums or not p.is_partial()
        for p in placements
    )
    return tuple(placements) if fits else (Replicate(),) * len(placements)


def written(op, sample, outs):
    """The results, and whether PyTorch said that it resized one."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = op(sample.input, *sample.args, **sample.kwargs,
                   out=tuple(outs) if len(outs) > 1 else outs[0])
    said = any("was resized" in str(warning.message) for warning in caught)
    return found if len(outs) > 1 else [found], said


@pytest.mark.parametrize("op", OPERATORS, ids=name_of)
@pytest.mark.parametrize("sizes", ["right", "none", "wrong"])
@pytest.mark.filterwarnings("ignore")
def test_out_keeps_its_layout(op, sizes, mesh):
    for sample, placements in [(s, p) for s in samples(op, torch.float32, 2) for p in LAYOUTS]:
        made = op(sample.input, *sample.args, **sample.kwargs)
        plain = [
            torch.zeros_like(t) if sizes == "right"
            else t.new_zeros([0] if sizes == "none" else [*t.shape, 2])
            for t in (made if isinstance(made, (tuple, list)) else [made])
        ]
        ours = [placed(t, mesh, fitting(placements, t)) for t in plain]
        before = [t.placements for t in ours]
        given = tree_map(
            lambda t: placed(t, mesh, placements_for_mesh(t)) if isinstance(t, torch.Tensor) else t,
            (sample.input, sample.args, sample.kwargs),
        )
        moved = type(sample)(given[0], args=given[1], kwargs=given[2])
        _, said = written(op, sample, plain)
        found, our_said = written(op, moved, ours)
        assert all(one is other for one, other in zip(found, ours, strict=True))
        assert our_said == said
        for expected, tensor, lay in zip(plain, ours, before, strict=True):
            assert tensor.placements == fitting(lay, tensor), (lay, tensor.shape)
            torch.testing.assert_close(tensor.cpu(), expected, rtol=1e-3, atol=1e-3)


def test_out_with_gradients_is_refused(mesh):
    """With PyTorch's text, where the kernel is ours too."""
    plain = torch.rand(3, 3, requires_grad=True)
    ours = placed(plain.detach(), mesh, [Shard(0), Shard(1)]).requires_grad_()
    for call in (torch.kron, torch.matmul, torch.mul):
        errors = []
        for x in (plain, ours):
            with pytest.raises(RuntimeError) as caught:
                call(x, x, out=torch.zeros_like(x).detach())
            errors.append(str(caught.value))
        assert errors[0] == errors[1]


@pytest.mark.parametrize("placements", LAYOUTS, ids=str)
def test_resize_keeps_the_layout(placements, mesh):
    plain = torch.arange(12.0).view(4, 3)
    ours = placed(plain, mesh, placements)
    for sizes in ((6, 2), (2, 3), (7,), (3, 5, 2)):
        ours.resize_(sizes)
        kept = min(plain.numel(), ours.numel())
        plain.resize_(sizes)
        assert ours.placements == fitting(ours.placements, ours)
        count = min(kept, 6)
        torch.testing.assert_close(ours.cpu().view(-1)[:count], plain.view(-1)[:count])
    assert tree_leaves(ours.tolist())
