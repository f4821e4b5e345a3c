"""Python kernels that may stand in for operators of PyTorch's."""

import contextlib
import contextvars
import functools
import warnings
from collections.abc import Iterator

import torch

from .operators import PythonKernel

_offered = {}  # name of the kernel -> (name of the operator, kernel)
_replaceable = {}  # name of the operator -> the library that asks which kernel to take
_configured = {}  # name of the operator -> kernel
_chosen = contextvars.ContextVar("dtorch_chosen_kernels", default=None)


def check_alternative(native, parsed):
    """The operator that a kernel of this schema may stand in for; ValueError if it can't."""
    op = _native(native)
    known = {a.name: str(a.type) for a in op._schema.arguments}
    wrong = [a.name for a in parsed.arguments if known.get(a.name) != str(a.type)]
    needed = [
        a.name for a in op._schema.arguments
        if not a.has_default_value() and a.name not in {b.name for b in parsed.arguments}
    ]  # fmt: skip
    returns = [str(r.type) for r in parsed.returns]
    if wrong or needed or returns != [str(r.type) for r in op._schema.returns]:
        raise ValueError(
            f"{parsed.name} can't stand in for {op._schema}: its arguments must be some of that "
            "operator's, by name and type, with all that have no default, and its results the same "
            f"(wrong: {wrong or 'none'}, missing: {needed or 'none'})"
        )
    return op


def _native(native):
    if isinstance(native, torch._ops.OpOverloadPacket):
        return native.default
    if isinstance(native, torch._ops.OpOverload):
        return native
    space, _, name = str(native).partition("::")
    base, _, overload = name.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), base), overload or "default")
    except AttributeError:
        raise ValueError(
            f"instead_of is {native!r}: expected an operator such as "
            "'aten::scaled_dot_product_attention'"
        ) from None


def offer(op, kernel):
    """Note an alternative, and have its operator ask for the choice from now on."""
    _offered[kernel.name] = op._name, kernel
    if op._name in _replaceable:
        return
    library = torch.library.Library(op.namespace, "IMPL")
    with warnings.catch_warnings():
        # That PyTorch's kernels are overridden is the purpose.
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        # Under inference_mode tensors have no autograd key.
        for key in ("AutogradPrivateUse1", "PrivateUse1"):
            before = torch.library.get_kernel(op, key)
            library.impl(op, functools.partial(_dispatch, op, before), key, with_keyset=True)
    _replaceable[op._name] = library


def _dispatch(op, before, keys, *args, **kwargs):
    chosen = _chosen.get()
    kernel = (_configured if chosen is None else chosen).get(op._name)
    if kernel is None:
        return before.call_boxed(keys, *args, **kwargs)
    given, own = dict(kwargs), {a.name for a in kernel.op._schema.arguments}
    given.update(zip((a.name for a in op._schema.arguments), args, strict=False))
    for argument in op._schema.arguments:
        if argument.name in own or argument.name not in given:
            continue
        value = given[argument.name]
        if isinstance(value, torch.Tensor) or value != argument.default_value:
            raise ValueError(
                f"{kernel.name} was chosen for {op._name} and takes no {argument.name}, which "
                f"this call gives as {str(value):.60}: add it to the kernel, or call "
                "outside use_kernels"
            )
        del given[argument.name]
    return kernel.op(**given)


def _by_operator(kernels):
    found = {}
    for kernel in kernels:
        name = getattr(kernel, "name", kernel)
        if name not in _offered:
            raise ValueError(
                f"{name!r} is no Python kernel registered with instead_of=: expected some of "
                f"{sorted(_offered)}"
            )
        native, known = _offered[name]
        if native in found:
            raise ValueError(
                f"{name} and {found[native].name} both stand in for {native}: choose one of them"
            )
        found[native] = known
    return found


@contextlib.contextmanager
def use_kernels(*kernels: PythonKernel | str) -> Iterator[None]:
    """Take Python kernels in place of the operators that they were registered `instead_of`.

        with dt.use_kernels(attention):     # or its name, "my::attention"
            y = model(x)

    On the dtorch device, for calls in this block, and for no others: none given means PyTorch's
    own implementations. `dt.init(kernels="my::attention")` or DTORCH_KERNELS choose for the whole
    program. A call that gives an argument, other than its default, that the kernel does not take
    raises ValueError. So does a kernel that was not registered with `instead_of`.
    """
    token = _chosen.set(_by_operator(kernels))
    try:
        yield
    finally:
        _chosen.reset(token)


def configure(names):
    """Choose for the whole program: names of kernels with commas between."""
    global _configured
    _configured = _by_operator(name.strip() for name in names.split(",") if name.strip())
