"""One body, run on the CPU by plain PyTorch and on the device: the results must agree."""

import torch
from torch.utils import _pytree as pytree


def on(device, value):
    """A copy of tensors in any nesting on `device`; leaves stay leaves that want gradients."""

    def move(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad)

    return pytree.tree_map(move, value)


def check(expected, found, **tolerances):
    """The same structure, dtypes, shapes and values; tensors of `found` lie on the device."""
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    found_leaves, found_spec = pytree.tree_flatten(found)
    assert expected_spec == found_spec
    for one, other in zip(expected_leaves, found_leaves, strict=True):
        if not isinstance(one, torch.Tensor):
            assert one == other or (one != one and other != other), (one, other)
            continue
        assert other.device.type == "dtorch", other.device
        assert other.dtype == one.dtype
        assert other.shape == one.shape
        assert other.requires_grad == one.requires_grad
        torch.testing.assert_close(other.detach().cpu(), one.detach(), equal_nan=True, **tolerances)


def same(body, *inputs, **tolerances):
    """Check that `body(*inputs)` gives the same on the CPU and on the device; returns both."""
    expected = body(*on("cpu", inputs))
    found = body(*on("dtorch", inputs))
    check(expected, found, **tolerances)
    return expected, found


def same_with_gradients(body, *inputs, **tolerances):
    """`same`, and the gradients of the inputs that want one, for a fixed cotangent."""

    def both_ways(*inputs):
        wanted = [
            x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor) and x.requires_grad
        ]
        outputs = [
            y
            for y in pytree.tree_leaves(body(*inputs))
            if isinstance(y, torch.Tensor) and y.requires_grad
        ]
        cotangents = [
            torch.linspace(-1, 1, max(1, y.numel()), dtype=torch.float64)[: y.numel()]
            .reshape(y.shape)
            .to(y.dtype)
            .to(y.device)
            for y in outputs
        ]
        gradients = torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True)
        return [y.detach() for y in outputs], list(gradients)

    same(both_ways, *inputs, **tolerances)


def seeded(*sizes, dtype=torch.float32, grad=False, seed=0):
    """Normal numbers that do not depend on what ran before."""
    numbers = torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return numbers.requires_grad_(grad)
