"""Python functions that run on the workers, each on its own part of a global tensor."""

from . import read_rows  # noqa: F401 -- registers data.read_rows
from .registry import KernelContext, call, kernel

__all__ = ["KernelContext", "call", "kernel"]
