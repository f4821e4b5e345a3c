"""Functions that make tensors on the workers of no tensors, and how one is called from the client.

Only registered names travel, with arguments in msgpack: nothing is unpickled on a worker.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch.distributed.device_mesh import DeviceMesh

from .. import _core
from ..mesh import GivenPlacements, check_placements, sharding_number

_kernels = {}


@dataclass(frozen=True)
class KernelContext:
    """Which part of the global outputs this worker makes.

    sizes: global size of each output. local_slices: for each output, (offset, size) of each
    dim. dtypes: of each output. device: where to put them.
    """

    sizes: tuple[tuple[int, ...], ...]
    local_slices: tuple[tuple[tuple[int, int], ...], ...]
    dtypes: tuple[torch.dtype, ...]
    device: torch.device = torch.device("cpu")


def kernel(name: str) -> Callable[[Callable], Callable]:
    """Register a function `fn(context, *args) -> tensor or tuple of tensors` under a name.

    It must be registered on every worker: at import of a module that all ranks import.
    """

    def register(function):
        if name in _kernels and _kernels[name] is not function:
            raise ValueError(f"a kernel named {name!r} is registered already; choose another name")
        _kernels[name] = function
        return function

    return register


def kernel_names():
    return list(_kernels)


def going_on() -> None:
    """Tell the watchdog that the kernel which calls makes progress, or waits for others with it.

    For kernels that may take longer than `watchdog_seconds`. Elsewhere it does nothing.
    """
    from .. import _worker  # it imports this module

    _worker.going_on()


def call(
    name: str, args: Iterable[Any], *, sizes: Sequence[int], dtype: torch.dtype,
    mesh: DeviceMesh | None = None, placements: GivenPlacements = None,
) -> torch.Tensor:
    """Run a kernel on every worker and return its output, a dtorch tensor.

    name: as registered. args: numbers, strings, lists and dicts of them (msgpack). sizes:
    global size of the output. placements: how it lies on the mesh; None is replicated.
    """
    if name not in _kernels:
        raise ValueError(f"no kernel is named {name!r}; registered are {sorted(_kernels)}")
    number = 0
    if mesh is not None:
        number = sharding_number(mesh, check_placements(mesh, placements, len(sizes)))
    packed = msgspec.msgpack.encode(list(args))
    (output,) = _core.call_python_kernel(name, packed, [(dtype_number(dtype), list(sizes), number)])
    return output


def run(name, packed, outputs):
    """On a worker: run kernel `name`; outputs are (dtype number, sizes, local sizes, offsets)."""
    if name not in _kernels:
        raise ValueError(
            f"no kernel is named {name!r} on this worker: import its module on all ranks"
        )
    context = KernelContext(
        sizes=tuple(sizes for _, sizes, _, _ in outputs),
        local_slices=tuple(
            tuple(zip(offsets, local, strict=True)) for _, _, local, offsets in outputs
        ),
        dtypes=tuple(_dtypes[dtype] for dtype, _, _, _ in outputs),
    )
    result = _kernels[name](context, *msgspec.msgpack.decode(packed))
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


# c10::ScalarType's numbers, which never change: they are in saved models.
_dtypes = dict(
    enumerate(
        [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
         torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
         torch.bool, torch.qint8, torch.quint8, torch.qint32, torch.bfloat16]
    )
)  # fmt: skip
_dtypes |= dict(
    enumerate(
        [torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.float8_e4m3fnuz,
         torch.uint16, torch.uint32, torch.uint64], 23
    )
) | {44: torch.float8_e8m0fnu}  # fmt: skip
_numbers = {dtype: number for number, dtype in _dtypes.items()}


def dtype_number(dtype):
    return _numbers[dtype]


def dtype_of_number(number):
    """None for one that has no name here."""
    return _dtypes.get(number)
