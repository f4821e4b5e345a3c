"""Mistakes are told at once, at the user's line, in PyTorch's words."""

import sys

import pytest
import torch
from parity import on

MISTAKES = [
    lambda d: torch.ones(2, 3, device=d) + torch.ones(4, 5, device=d),
    lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    lambda d: torch.ones(2, 3, device=d).view(4),
    lambda d: torch.ones(2, 3, device=d).sum(5),
    lambda d: torch.cat([torch.ones(2, device=d), torch.ones(2, 2, device=d)]),
    lambda d: torch.ones(2, 3, device=d).expand(3, 3),
    lambda d: torch.ones(2, device=d, dtype=torch.int64) @ torch.ones(2, device=d),
    lambda d: torch.nn.functional.linear(torch.ones(2, 3, device=d), torch.ones(4, 5, device=d)),
    lambda d: torch.nn.functional.conv2d(
        torch.ones(1, 3, 4, 4, device=d), torch.ones(2, 2, 3, 3, device=d)
    ),
    lambda d: torch.ones(3, device=d).bitwise_and(torch.ones(3, device=d)),
    lambda d: torch.ones(3, dtype=torch.int64, device=d).add_(torch.ones(3, device=d)),
    lambda d: torch.ones(3, dtype=torch.int64, device=d).softmax(0),
    lambda d: torch.ones(3, device=d)[[True, False]],
    lambda d: torch.ones(3, device=d).index_select(0, torch.ones(2, device=d)),
    lambda d: torch.ones(3, 2, device=d).gather(0, torch.zeros(2, dtype=torch.int64, device=d)),
    lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]),
    lambda d: torch.nn.functional.embedding(torch.ones(2, device=d), torch.ones(4, 5, device=d)),
    lambda d: torch.ones(2, 3, device=d).t_().view(6),
    lambda d: torch.ones(2, 3, device=d).squeeze(0).reshape(-1, 4),
    lambda d: torch.ones(2, device=d).resize_(-1),
    lambda d: torch.ones(3, device=d).narrow(0, 2, 5),
    lambda d: torch.ones(0, device=d).max(),
    lambda d: torch.nn.functional.cross_entropy(
        torch.ones(2, 3, device=d), torch.zeros(4, dtype=torch.int64, device=d)
    ),
    lambda d: torch.arange(0, 3, -1, device=d),
    lambda d: torch.ones(3, device=d, requires_grad=True).add_(1),
    lambda d: torch.ones(3, device=d, requires_grad=True).mul(2).backward(),
    lambda d: torch.ones(3, device=d).sum().backward(),
    lambda d: torch.linalg.inv(torch.ones(2, 3, device=d)),
    lambda d: torch.ones(2, 3, device=d)[0, 0, 0],
    lambda d: torch.ones(2, device=d).masked_fill_(torch.ones(3, device=d) > 0, 1),
    lambda d: torch.add(
        torch.ones(2, device=d),
        torch.ones(2, device=d),
        out=torch.ones(2, device=d, dtype=torch.int64),
    ),
    lambda d: torch.nn.Linear(3, 2, device=d)(torch.ones(2, 4, device=d)),
    lambda d: torch.ones(2, device=d).copy_(torch.ones(3, device=d)),
    lambda d: bool(torch.ones(2, device=d)),
    lambda d: torch.ones(3, device=d).bernoulli_(2.0),
    lambda d: torch.ones(3, device=d).normal_(0, -1),
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_text_is_pytorchs(mistake):
    with pytest.raises(Exception) as expected:  # noqa: B017 -- whichever PyTorch raises
        mistake("cpu")
    for _ in range(2):
        with pytest.raises(Exception) as found:  # noqa: B017
            mistake("dtorch")
        assert type(found.value) is type(expected.value)
        assert str(found.value) == str(expected.value)


def test_the_line_is_the_users():
    x = torch.ones(2, device="dtorch")
    try:
        x + x
        line = sys._getframe().f_lineno + 1
        x + torch.ones(3, device="dtorch")
    except RuntimeError as error:
        assert error.__traceback__.tb_lineno == line
    else:
        raise AssertionError("the shapes do not fit")


@pytest.mark.parametrize(
    "mistake",
    [
        lambda x, y: x + y,
        lambda x, y: y + x,
        lambda x, y: x @ y.T,
        lambda x, y: torch.cat([x, y]),
        lambda x, y: torch.nn.functional.linear(x, y),
        lambda x, y: x.add_(y),
        lambda x, y: y.add_(x),
        lambda x, y: torch.where(x > 0, x, y),
        lambda x, y: torch.addmm(x, x, y.T),
    ],
)
def test_tensors_on_two_devices(mistake):
    x, y = torch.ones(3, 3, device="dtorch"), torch.ones(3, 3)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        mistake(x, y)


def test_only_device_zero():
    with pytest.raises(RuntimeError, match="dtorch has one device"):
        torch.ones(2, device="dtorch:1")


def test_a_changed_saved_tensor_is_noticed():
    x = on("dtorch", torch.ones(3, requires_grad=True))
    y = x.exp()
    z = y.sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_sparse_and_quantized_are_refused_in_words():
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.eye(2).to_sparse().to("dtorch")
