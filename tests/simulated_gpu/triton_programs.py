"""Runs programs in Triton on the CPU, by Triton's own interpreter, over memory of the CPU.

A program begins with a comment, JSON, that tells a kernel's name in it, its constants, threads and
the types of what it takes, as dtorch_mpi/fusion/kernels.py puts it behind machine code. Outputs
are what is called o0, o1, ...
"""

import contextlib
import functools
import importlib.util
import json
import os
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch

_DTYPES = {"*fp32": torch.float32, "*fp64": torch.float64, "*i64": torch.int64,
           "*bf16": torch.bfloat16, "*i8": torch.int8}  # fmt: skip
_NUMBERS = {"fp32": np.float32, "fp64": np.float64, "i64": np.int64, "i32": np.int32}
_lock = threading.Lock()  # the interpreter puts its own functions into Triton's modules


def _told(program, name):
    told = json.loads(program.partition("\n")[0].removeprefix("#"))
    return told if told["name"] == name else None


def parameters(program, name):
    """(threads of a block, [(bytes, whether it is an address, whether of an output)]), or None for
    a kernel that the program does not have."""
    told = _told(program, name)
    return told and (told["threads"], [
        (8 if kind.startswith("*") else np.dtype(_NUMBERS[kind]).itemsize, kind.startswith("*"),
         place.startswith("o") and kind.startswith("*"))
        for place, kind in told["signature"].items()
    ])  # fmt: skip


def run(program, name, read, written, numbers, blocks):
    """read, written: memory from the address on, as bytes on the CPU. numbers: in their bits."""
    told = _told(program, name)
    read, written, numbers = iter(read), iter(written), iter(numbers)
    with _lock:
        kernel = _interpreted(program)
        arguments = {}
        for place, kind in told["signature"].items():
            if kind.startswith("*"):
                memory = next(written if place.startswith("o") else read)
                dtype = _DTYPES[kind]
                whole = len(memory) // dtype.itemsize * dtype.itemsize
                arguments[place] = memory[:whole].view(dtype)
            else:
                bits = np.array([next(numbers)], np.int64).view(_NUMBERS[kind])[:1]
                arguments[place] = _scalar(bits, kind)
        kernel[(blocks,)](**arguments, ROWS=told["rows"], COLUMNS=told["columns"])


@contextlib.contextmanager
def _interpreting():
    """Functions of Triton's that are defined in here are interpreted."""
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        yield
    finally:
        del os.environ["TRITON_INTERPRET"]  # the process that compiles inherits the others


def load():
    """Import Triton, before anybody else does: its own functions are to be interpreted too."""
    if "triton" in sys.modules:
        raise RuntimeError("Triton is imported already: load the simulated GPUs before")
    with _interpreting():
        import triton.experimental.gluon  # noqa: F401  which a run imports
        import triton.runtime.interpreter as interpreter
    usual = interpreter._convert_float
    interpreter._convert_float = functools.partial(_convert_float, usual)


def _convert_float(usual, values, source, target, rounding):
    """Between bfloat16, as 16 bits, and float32; the interpreter's own cuts where a GPU rounds."""
    if (source.name, target.name) == ("bf16", "fp32"):
        return (values.astype(np.uint32) << 16).reshape(values.shape)
    if (source.name, target.name) == ("fp32", "bf16"):
        rounded = torch.from_numpy(values.copy()).to(torch.bfloat16)
        return rounded.view(torch.int16).numpy().view(np.uint16)
    return usual(values, source, target, rounding)


@functools.cache
def _interpreted(program):
    with _interpreting(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(program)
        found = importlib.util.spec_from_file_location(f"program_{abs(hash(program))}", path)
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        module.dtorch_fused.rewrite()  # while there is a text to read
    module.libdevice = _Libdevice()
    return module.dtorch_fused


def _scalar(bits, kind):
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    dtype = {"fp32": tl.float32, "fp64": tl.float64, "i64": tl.int64, "i32": tl.int32}[kind]
    return tl.tensor(TensorHandle(bits, dtype), dtype)


def _multiply_add(a, b, c):
    """With one rounding, of float32."""
    return (a.double() * b + c).to(a.dtype)


class _Libdevice:
    """CUDA's functions of one element, by PyTorch's, which know no difference between these."""

    _OTHERS = {"sqrt_rn": torch.sqrt, "div_rn": torch.div, "nearbyint": torch.round,
               "fma": _multiply_add, "rcp_rn": torch.reciprocal}  # fmt: skip

    def __getattr__(self, name):
        return functools.partial(_call, self._OTHERS.get(name) or getattr(torch, name))


def _call(function, *arguments):
    from triton.language import block_type, tensor
    from triton.runtime.interpreter import TensorHandle

    (dtype,) = {a.dtype.scalar for a in arguments if isinstance(a, tensor)}
    given = [torch.from_numpy(np.asarray(a.handle.data)) if isinstance(a, tensor) else a
             for a in arguments]  # fmt: skip
    if not isinstance(given[0], torch.Tensor):
        given[0] = torch.full_like(given[1], given[0])
    made = function(*given).numpy()
    is_block = any(isinstance(a, tensor) and a.type.is_block() for a in arguments)
    kind = block_type(dtype, list(made.shape)) if is_block else dtype
    return tensor(TensorHandle(made, dtype), kind)
