"""Every layer of torch.nn from PyTorch's own database, forward and backward, on every layout."""

import copy
import random

import pytest
import torch
from layouts import WORKERS, copied, put, read
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils import _pytree as pytree

pytest.importorskip("expecttest", reason="pip install expecttest: PyTorch's own databases need it")

from torch.testing._internal.common_modules import module_db  # noqa: E402

pytestmark = pytest.mark.timeout(120)
MODULES = {info.name: info for info in module_db}
MOST = {"one": 4, "grid": 2, "uneven": 2}  # inputs of a module, spread over those there are


def inputs_of(info, training, most):
    torch.manual_seed(0)
    random.seed(0)
    found = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    found = [one for one in found if one.forward_input is not None]
    picked = sorted({round(k * (len(found) - 1) / (most - 1)) for k in range(most)})
    return [found[index] for index in picked] if found else []


def make(info, given, training):
    """The module and (args, kwargs) of its forward, on the CPU."""
    torch.manual_seed(1)
    args, kwargs = pytree.tree_map(
        # Some of the database's tensors are float64 for any dtype.
        lambda leaf: leaf.float() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        else leaf,
        (given.constructor_input.args, given.constructor_input.kwargs),
    )
    module = info.module_cls(*args, **kwargs)
    module.train(training)
    arguments = (tuple(given.forward_input.args), dict(given.forward_input.kwargs))
    if isinstance(module, LazyModuleMixin):
        arguments_once = copied(arguments)
        module(*arguments_once[0], **arguments_once[1])  # gives it its parameters
        module.zero_grad()
    return module, arguments


def run(module, arguments):
    """[outputs, gradients of the inputs, gradients of the parameters, buffers]."""
    torch.manual_seed(2)
    args, kwargs = arguments
    outputs = module(*args, **kwargs)
    wanted = [
        leaf for leaf in pytree.tree_leaves(outputs)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if wanted:
        ramps = [
            torch.linspace(0.5, 1.5, max(out.numel(), 1))[: out.numel()]
            .view(out.shape).to(out.dtype).to(out.device)
            for out in wanted
        ]
        torch.autograd.backward(wanted, ramps)
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    return read([
        outputs, [leaf.grad for leaf in leaves], {n: p.grad for n, p in module.named_parameters()},
        dict(module.named_buffers()),
    ])


def same(found, expected):
    mine, theirs = pytree.tree_leaves(found), pytree.tree_leaves(expected)
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)
        else:
            assert one == other


@pytest.mark.parametrize("name", list(MODULES))
@pytest.mark.parametrize("layout", list(WORKERS))
def test_a_module(name, layout, on_workers):
    info = MODULES[name]
    on_workers(WORKERS[layout])
    modes = (True, False) if info.train_and_eval_differ else (True,)
    for training in modes:
        for given in inputs_of(info, training, MOST[layout]):
            module, arguments = make(info, given, training)
            twin = put(layout, copy.deepcopy(module))
            placed = put(layout, copied(arguments))
            expected = run(module, copied(arguments))
            same(run(twin, placed), expected)
