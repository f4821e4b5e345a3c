"""Python functions that the workers call.

Two kinds, for two purposes. `python_kernel` makes an operator of one: tensors in, tensors out, with
gradients, in plain PyTorch too. `kernel` and `call` make tensors of none: each worker is told which
part of a new tensor is its own, and makes it, from a file say, by numbers and text that are sent.
"""

from . import empty, memory, read_rows, timeline  # noqa: F401 -- they register kernels
from .alternatives import use_kernels
from .operators import PythonKernel, python_kernel
from .registry import KernelContext, call, going_on, kernel

__all__ = [
    "KernelContext", "PythonKernel", "call", "going_on", "kernel", "python_kernel", "use_kernels",
]  # fmt: skip
