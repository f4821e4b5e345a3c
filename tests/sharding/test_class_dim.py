"""A class dim that is cut is not gathered: by the decisions taken, and by what workers hold."""

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from launching import run_job

import dtorch_mpi as dt

MESH = (3,)

TOLERANCE = dict(rtol=1e-5, atol=1e-6)


def gathered(before):
    return [entry for entry in dt.debug.fallbacks() if entry not in before]


@pytest.mark.parametrize("classes", [9, 10])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(mesh, classes, reduction, weighted):
    torch.manual_seed(0)
    scores, target = torch.randn(7, classes), torch.randint(0, classes, (7,))
    target[2] = -100
    weight = torch.rand(classes) if weighted else None
    expected = scores.clone().requires_grad_()
    loss = F.cross_entropy(expected, target, weight, reduction=reduction)
    loss.sum().backward()

    before = dt.debug.fallbacks()
    cut = dt.distribute_tensor(scores, mesh, [dt.Shard(1)]).requires_grad_()
    placed = None if weight is None else dt.distribute_tensor(weight, mesh, [dt.Shard(0)])
    found = F.cross_entropy(
        cut, dt.distribute_tensor(target, mesh, [dt.Replicate()]), placed, reduction=reduction
    )
    found.sum().backward()
    torch.testing.assert_close(found.detach().cpu(), loss.detach(), **TOLERANCE)
    torch.testing.assert_close(cut.grad.cpu(), expected.grad, **TOLERANCE)
    assert not any("softmax" in name or "nll" in name for name, *_ in gathered(before))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(1), lambda x: x.log_softmax(1), lambda x: x.logsumexp(1),
        lambda x: x.argmax(1), lambda x: x.argmin(1), lambda x: x.argmax(), lambda x: x.mean(),
        lambda x: x.var(1), lambda x: x.std(), lambda x: x.tril(), lambda x: x.triu(1),
        lambda x: x[:, :7].trace(), lambda x: F.layer_norm(x, (10,)),
        lambda x: x.norm(float("inf")),
    ],
)
def test_reductions_over_a_cut_dim(mesh, function):
    torch.manual_seed(0)
    full = torch.randn(7, 10)
    cut = dt.distribute_tensor(full, mesh, [dt.Shard(1)])
    torch.testing.assert_close(function(cut).cpu(), function(full), **TOLERANCE)


@pytest.mark.skipif(os.environ["DTORCH_DEVICE"] == "gpu", reason="the precision is that of CPUs")
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: torch.native_layer_norm(x, (10,), w, w, 1e-5),
        lambda x, w: torch.native_group_norm(x[:, :, None], w, w, 6, 10, 1, 2, 1e-5),
        lambda x, w: torch.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5),
        lambda x, w: torch.native_layer_norm(x, (10,), w.float(), w.float(), 1e-5),
    ],
)
@pytest.mark.parametrize("dim", [0, 1])
def test_statistics_have_the_precision_that_plain_pytorch_gives(mesh, function, dim):
    torch.manual_seed(0)
    full, weight = torch.randn(6, 10).bfloat16(), torch.rand(10).bfloat16()
    cut = dt.distribute_tensor(full, mesh, [dt.Shard(dim)])
    found = function(cut, dt.distribute_tensor(weight, mesh, [dt.Shard(0)]))
    for made, expected in zip(found, function(full, weight), strict=True):
        torch.testing.assert_close(made.cpu(), expected, rtol=2e-2, atol=2e-2)


def test_the_first_nan_is_the_greatest(mesh):
    full = torch.tensor([[1.0, 5.0, float("nan"), 7.0, float("nan"), 2.0]])
    cut = dt.distribute_tensor(full, mesh, [dt.Shard(1)])
    assert cut.argmax(1).cpu().tolist() == full.argmax(1).tolist() == [2]
    assert cut.argmin().cpu().tolist() == full.argmin().tolist() == 2


@pytest.mark.asserts_on_device
@pytest.mark.parametrize("wrong", [10, -1])
def test_a_target_beyond_the_classes_is_an_error(mesh, wrong):
    cut = dt.distribute_tensor(torch.randn(3, 10), mesh, [dt.Shard(1)])
    target = dt.distribute_tensor(torch.tensor([0, wrong, -100]), mesh, [dt.Replicate()])
    with pytest.raises((dt.WorkerError, IndexError), match=f"Target( {wrong})? is out of bounds"):
        F.cross_entropy(cut, target).cpu()


def test_no_worker_has_all_classes():
    """Peaks of softmax and of cross entropy with its gradient, in tables of scores."""
    ended = run_job(Path(__file__).with_name("class_dim_peaks.py"), launcher="mpirun", workers=4,
                    limit=110)
    assert ended.code == 0, ended.err
    peaks = dict(line.split() for line in ended.out.splitlines())
    # Each step between takes a quarter; one that gathered the classes would take 1 by itself.
    assert float(peaks["softmax"]) < 0.9
    assert float(peaks["cross_entropy"]) < 0.65 * float(peaks["cross_entropy_whole"])
