"""Operators whose implementation is a Python function that the workers call."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

from .. import _core

_registered = {}


class PythonKernel:
    """A registered Python kernel. Calling it calls its operator, on tensors of any device.

    Attributes: name ("ns::op"), op (the torch._ops.OpOverload), function (the Python function).
    """

    def __init__(
        self, name: str, op: torch._ops.OpOverload, function: Callable, library: Library
    ) -> None:
        functools.update_wrapper(self, function)
        self.name, self.op, self.function, self._library = name, op, function, library

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.op(*args, **kwargs)

    def __repr__(self):
        return f"<PythonKernel {self.op._schema}>"


def python_kernel(
    schema: str, *, meta: Callable | None = None, sharding: str | None = None,
    backward: Callable | None = None, setup_context: Callable | None = None,
    instead_of: str | None = None,
) -> Callable[[Callable], PythonKernel]:
    """Decorator: register a Python function as an operator that the workers call.

        @dt.python_kernel("my::scaled(Tensor x, float by) -> Tensor",
                          meta=lambda x, by: torch.empty_like(x), sharding="... -> ...")
        def scaled(x, by):
            return x * by

        y = scaled(x, 2.0)        # or torch.ops.my.scaled(x, 2.0)

    It is a PyTorch operator (`torch.library`), so on tensors of other devices the function is
    called right there. On dtorch tensors the call is recorded like any other operator, and each
    worker calls the function with its own part of each argument: plain tensors in its own memory,
    not copied, under the GIL, on the stream and device that operators use there. No gradients are
    recorded in it. It must not use dtorch tensors.

    schema: as torch.library takes it, "ns::op(Tensor x, *, float scale=1.0) -> Tensor". Arguments
    that it writes to are `Tensor(a!) x`. The function's parameters have the same names, order and
    defaults. At least one argument is a tensor or a list of tensors (to make tensors of none, see
    `dtorch_mpi.kernels.kernel`). It returns new tensors, or arguments that it has written to.

    meta: a function of the same arguments, with tensors on device meta, that returns tensors on
    device meta of the shapes, strides and dtypes that the kernel's results have. It runs on the
    client. Without one every call waits for the workers to say what came out, and gathers its
    arguments.

    sharding: how dims go together, one term for each tensor argument and result:
    "bh__, bh__, bh__ -> bh__" says that dims 0 and 1 of all four may be cut, together, and the
    others (`_`) must be whole. `ab*`: elementwise over dims 0 and 1, `*` any number of whole dims.
    `...`: elementwise over all (leading) dims. `i_, _ -> i | ...`: see sharding/formulas.py.
    Without it, and where a worker's part would be empty, every worker gets the whole arguments, and
    the call counts as a fallback if that gathers them.

    backward, setup_context: as for `torch.library.register_autograd`. They run on the client, on
    dtorch tensors: backward calls operators, of which other Python kernels may be some. Without
    them the operator has no gradient, and PyTorch warns of that in backward.

    instead_of: an operator of PyTorch's whose implementation this is an alternative to, such as
    "aten::scaled_dot_product_attention"; the kernel's arguments have names of that operator's.
    See :func:`use_kernels`.

    Where workers are processes, register before `dt.init()`: they stay in it. A kernel that a
    worker does not know makes its calls fail with a WorkerError that says so.

    Errors raised in the function become a WorkerError where a result is read, with the exception's
    type and text and the function's line, beside the line that called it. So do results that are
    not what `meta` says.

    Raises ValueError for a schema that can't be a Python kernel's, for one that is registered
    already (the same function again replaces itself, as in a notebook), and for a sharding or
    an `instead_of` that do not fit it; TypeError for a function that does not fit.
    """
    parsed = _parse(schema)
    name = parsed.name + (f".{parsed.overload_name}" if parsed.overload_name else "")
    made = [r for r in parsed.returns if r.alias_info is None]
    if sharding is not None and meta is None and made:
        raise ValueError(f"{name} has a sharding and no meta: workers' parts can't be told without")
    if setup_context is not None and backward is None:
        raise ValueError(f"{name} has setup_context and no backward: give both or neither")

    def register(function):
        _check_function(parsed, name, function)
        if instead_of is not None:
            from .alternatives import check_alternative

            native = check_alternative(instead_of, parsed)
        library = _define(parsed, schema, name, function)
        try:
            op = _overload(parsed)
            fake = meta or (None if made else _returning_written(parsed))
            if fake is not None:
                torch.library.register_fake(name, fake, lib=library)
            if backward is not None:
                _register_backward(name, backward, setup_context, library)
            if any(a.alias_info is not None for a in parsed.arguments):
                _count_writes(parsed, op, library)
            # After the rest: from now on the device captures it.
            library.impl(name.partition("::")[2], function, "CompositeExplicitAutograd")
            if sharding is not None:
                from ..sharding.users_rules import register_sharding

                register_sharding(op, sharding)
        except BaseException:
            library._destroy()
            raise
        kernel = PythonKernel(name, op, function, library)
        _registered[name] = kernel
        if instead_of is not None:
            from .alternatives import offer

            offer(native, kernel)
        return kernel

    return register


def _parse(schema):
    try:
        parsed = torch._C.parse_schema(schema)
    except RuntimeError as error:
        raise ValueError(f"{schema!r} is no schema: {error}") from None
    if "::" not in parsed.name:
        raise ValueError(f"{schema!r}: expected a namespace, as in 'my::{parsed.name}'")
    if not _core.is_users_operator(parsed.name):
        raise ValueError(
            f"{parsed.name} is in a namespace of PyTorch's or dtorch_mpi's: take one of your own, "
            "and instead_of= to implement an operator of theirs"
        )
    if not any("Tensor" in str(a.type) for a in parsed.arguments):
        raise ValueError(
            f"{parsed.name} takes no tensor: workers have no part of anything to give it. "
            "dtorch_mpi.kernels.kernel and call make tensors of other arguments"
        )
    for made in parsed.returns:
        if str(made.type) not in ("Tensor", "List[Tensor]"):
            raise ValueError(
                f"{parsed.name} returns {made.type}: expected tensors or lists of tensors"
            )
        if made.alias_info is not None and not made.alias_info.is_write:
            raise ValueError(
                f"{parsed.name} returns a view of an argument: a kernel's results are new tensors, "
                "or arguments that it has written to, Tensor(a!)"
            )
    return parsed


def _check_function(parsed, name, function):
    """Raise TypeError unless the function can be called as the schema says."""
    given = inspect.signature(function).parameters.values()
    expected = [
        (a.name, a.kwarg_only, a.has_default_value()) for a in parsed.arguments
    ]
    kinds = inspect.Parameter
    if any(p.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD) for p in given):
        raise TypeError(f"{name}: the function takes *args or **kwargs: name the arguments")
    found = [(p.name, p.kind == kinds.KEYWORD_ONLY, p.default is not p.empty) for p in given]
    fits = len(found) == len(expected) and all(
        # PyTorch leaves out arguments that have their default value.
        own == wanted and is_keyword <= keyword and has_default >= default
        for (own, is_keyword, has_default), (wanted, keyword, default) in zip(
            found, expected, strict=True
        )
    )
    if not fits:
        raise TypeError(
            f"{name}: the function is {getattr(function, '__name__', function)}"
            f"{inspect.signature(function)}, and the schema says {parsed}: give it the same "
            "parameters, in order, with the same defaults"
        )


def _define(parsed, schema, name, function):
    known = _registered.get(name)
    if known is not None:
        again = (known.function.__module__, known.function.__qualname__) == (
            getattr(function, "__module__", None), getattr(function, "__qualname__", None)
        )  # fmt: skip
        if not again:
            raise ValueError(
                f"{name} is registered already, as {known.function.__module__}."
                f"{known.function.__qualname__}: choose another name"
            )
        del _registered[name]
        known._library._destroy()
    elif _exists(parsed):
        raise ValueError(f"an operator {name} is registered already: choose another name")
    space, _, rest = schema.strip().partition("::")
    library = Library(space, "FRAGMENT")
    library.define(rest)
    return library


def _exists(parsed):
    try:
        torch._C._dispatch_find_schema_or_throw(parsed.name, parsed.overload_name)
    except RuntimeError:
        return False
    return True


def _overload(parsed):
    space, _, base = parsed.name.partition("::")
    return getattr(getattr(getattr(torch.ops, space), base), parsed.overload_name or "default")


def _returning_written(parsed):
    """The meta function of a kernel that makes nothing."""
    names = [a.name for a in parsed.arguments]
    sources = [
        next(a.name for a in parsed.arguments
             if a.alias_info is not None and a.alias_info.before_set == r.alias_info.before_set)
        for r in parsed.returns
    ]  # fmt: skip

    def meta(*args, **kwargs):
        given = dict(zip(names, args, strict=False)) | kwargs
        found = tuple(given[source] for source in sources)
        return (found[0] if len(found) == 1 else found) if found else None

    return meta


def _count_writes(parsed, op, library):
    """Have autograd notice what a kernel writes to, as custom_op does."""
    names = [a.name for a in parsed.arguments]
    written = {a.name for a in parsed.arguments if a.alias_info is not None}

    def count(keys, *args, **kwargs):
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if name in written and value is not None:
                torch.autograd.graph.increment_version(value)
        return op.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *args, **kwargs)

    library.impl(op, count, "ADInplaceOrView", with_keyset=True)


def _register_backward(name, backward, setup_context, library):
    try:
        torch.library.register_autograd(name, backward, setup_context=setup_context, lib=library)
    except RuntimeError as error:
        raise ValueError(f"{name} can't have a backward: {error}") from error
