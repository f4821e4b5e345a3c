"""The operators that PyTorch's own modules and optimizers call, with arguments, from its tests'
databases: many of them no function of PyTorch's names."""

import copy
import itertools
import warnings

import torch
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

KEPT = 2  # calls of one overload


class Recorder(TorchDispatchMode):
    """Keeps copies of the arguments of the first calls of each overload."""

    def __init__(self):
        super().__init__()
        self.calls = {}  # overload -> [(args, kwargs)]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = self.calls.setdefault(func, [])
        is_wanted = len(found) < KEPT and self.wants(func)
        given = tree_map(_copied, (args, kwargs)) if is_wanted else None
        results = func(*args, **kwargs)
        if is_wanted:
            found.append(given)
        return results

    @staticmethod
    def wants(func):
        # mkldnn's: modules on other devices take another way.
        return (func.namespace == "aten" and "mkldnn" not in func.name()
                and torch.Tag.nondeterministic_seeded not in func.tags)


def _copied(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.copy(value)


def run_modules():
    for info in module_db:
        for training in (True, False):
            torch.manual_seed(0)
            inputs = info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
            )
            for given in itertools.islice(inputs, 3):
                made, forward = given.constructor_input, given.forward_input
                if forward is None:
                    continue
                module = info.module_cls(*made.args, **made.kwargs).train(training)
                try:
                    results = module(*forward.args, **forward.kwargs)
                except RuntimeError:  # inputs that are for float64 only
                    continue
                wanted = [leaf for leaf in tree_leaves(results)
                          if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
                if wanted:
                    torch.autograd.backward(wanted, [torch.ones_like(leaf) for leaf in wanted])


def run_optimizers():
    for info in optim_db:
        if info.only_supports_sparse_grads:
            continue
        for given in info.optim_inputs_func(device="cpu"):
            for way in ({}, *({flag: True} for flag in info.supported_impls if flag in
                              ("foreach", "fused"))):
                if given.kwargs.get("capturable"):
                    continue
                torch.manual_seed(0)
                parameters = [torch.randn(4, 3, requires_grad=True),
                              torch.randn(3, requires_grad=True)]
                if info.optim_cls is torch.optim.Muon:
                    del parameters[1]  # it takes matrices only
                optimizer = info.optim_cls(parameters, **{**given.kwargs, **way})
                for _ in range(2):
                    for parameter in parameters:
                        parameter.grad = torch.ones_like(parameter)
                    optimizer.step(lambda: torch.tensor(1.0))


def record():
    """{overload: [(args, kwargs)]} of all of them."""
    with warnings.catch_warnings(), Recorder() as recorder:
        warnings.simplefilter("ignore")
        for body in (run_modules, run_optimizers):
            body()
    return {func: calls for func, calls in recorder.calls.items() if calls}
