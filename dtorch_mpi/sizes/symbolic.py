"""Running an operator on sizes that are symbols, by PyTorch's own symbolic shapes.

The only module that touches torch.fx.experimental.symbolic_shapes and torch._subclasses, which are
private. Tested with torch 2.13.0, and by tests/device with 2.14.1.
"""

import logging
from contextlib import contextmanager

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

Expression = sympy.Basic | int
_LOGS = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")


class SymbolicCall:
    """Symbols for one call, and all that was found to hold for them while it ran."""

    def __init__(self):
        # Sizes that happen to be equal are different symbols: an operator that needs them to be
        # equal says so in a condition.
        self._env = ShapeEnv(duck_shape=False)
        self._mode = FakeTensorMode(shape_env=self._env)
        # What it remembers of another call comes without the conditions.
        self._mode.cache_enabled = False
        self._inputs = {}

    @contextmanager
    def running(self):
        # The user's modes, such as a default device, are not for these tensors.
        # They log what they can't do as a failure; here it is an answer.
        logs = [logging.getLogger(name) for name in _LOGS]
        were_disabled = [log.disabled for log in logs]
        for log in logs:
            log.disabled = True
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad(), self._mode:
                yield
        finally:
            for log, was_disabled in zip(logs, were_disabled, strict=True):
                log.disabled = was_disabled

    def symbol(self, value: int, index: int) -> torch.SymInt:
        """A number of at least 2 that is `value` in the call at hand."""
        source = ConstantSource(f"value{index}")
        symbol = self._env.create_symbol(
            value, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None
        )
        self._inputs[symbol] = index
        return self._env.create_symintnode(symbol, hint=value, source=source)

    def inputs(self) -> dict[sympy.Symbol, int]:
        """The index of each symbol."""
        return self._inputs

    def conditions(self) -> list[sympy.Basic] | None:
        """What has to hold for all that was done so far; None where that can't be said."""
        if self._env.deferred_runtime_asserts:
            return None  # on values that only data tell
        return [guard.expr for guard in self._env.guards]


def expression(value: torch.SymInt | int) -> Expression:
    return value.node.expr if isinstance(value, torch.SymInt) else int(value)
