"""Python functions that run on the workers, each on its own part of a global tensor."""

from . import empty, memory, read_rows, timeline  # noqa: F401 -- they register kernels
from .registry import KernelContext, call, kernel

__all__ = ["KernelContext", "call", "kernel"]
