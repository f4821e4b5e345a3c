"""Losses of a sharded batch, and their gradients, gather nothing."""

import pytest
import torch
import torch.nn.functional as F

import dtorch_mpi as dt

MESH = (3,)
LOSSES = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "soft_margin": F.soft_margin_loss,
    "cross_entropy": lambda x, y, reduction: F.binary_cross_entropy(
        x.sigmoid(), y.sigmoid(), reduction=reduction
    ),
    "with_logits": lambda x, y, reduction: F.binary_cross_entropy_with_logits(
        x, y.sigmoid(), reduction=reduction
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_stay_sharded(mesh, name, reduction, dtype):
    scores, target = torch.randn(7, 5, dtype=dtype), torch.randn(7, 5, dtype=dtype)
    known = len(dt.debug.fallbacks())
    for dim in (0, 1):
        plain = scores.clone().requires_grad_()
        expected = LOSSES[name](plain, target, reduction=reduction)
        expected.sum().backward()
        sharded = dt.distribute_tensor(scores, mesh, [dt.Shard(dim)]).requires_grad_()
        other = dt.distribute_tensor(target, mesh, [dt.Shard(dim)])
        loss = LOSSES[name](sharded, other, reduction=reduction)
        loss.sum().backward()
        torch.testing.assert_close(loss.detach().to_torch(), expected.detach())
        torch.testing.assert_close(sharded.grad.to_torch(), plain.grad)
        assert sharded.grad.placements == (dt.Shard(dim),)
    assert dt.debug.fallbacks()[known:] == []
