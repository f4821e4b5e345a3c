"""Users' operators go to the workers: those of torch.library, of custom_op, of other packages.

Such an operator mostly has one kernel for all devices (CompositeExplicitAutograd), which PyTorch
would call on the client rather than the device's fallback. So capture is registered for each by
name, as it comes.
"""

import functools

from torch.library import Library

from .. import _core

_COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def _full_name(library, operator):
    name = operator if isinstance(operator, str) else operator._name
    name = name.partition("(")[0]
    return name if "::" in name else f"{library.ns}::{name}"


def _before_destroying(library):
    """Let the workers run what is issued: they hold operators that are about to go."""
    from ..runtime import current, sync

    names = filter(_core.is_users_operator, list(library._op_defs))
    were_called = [_core.forget_operator(name) for name in names]
    if current() is not None and any(were_called):
        sync()


def install():
    """Follow PyTorch's own way in: there is no notice of operators that are registered."""
    impl, define, destroy = Library.impl, Library.define, Library._destroy

    @functools.wraps(impl)
    def impl_captured(self, op_name, fn, dispatch_key="", **options):
        impl(self, op_name, fn, dispatch_key, **options)
        key = dispatch_key or self.dispatch_key
        name = _full_name(self, op_name)
        if key in _COMPOSITE:
            _core.capture_operator(name)
        elif key == "Meta" and _core.is_users_operator(name):
            _core.forget_operator(name)

    @functools.wraps(define)
    def define_anew(self, schema, *args, **options):
        made = define(self, schema, *args, **options)
        name = _full_name(self, schema)
        if _core.is_users_operator(name):
            _core.forget_operator(name)
        return made

    @functools.wraps(destroy)
    def destroy_after_use(self):
        try:
            _before_destroying(self)
        finally:
            destroy(self)

    Library.impl, Library.define, Library._destroy = impl_captured, define_anew, destroy_after_use
    _core.capture_users_operators()
