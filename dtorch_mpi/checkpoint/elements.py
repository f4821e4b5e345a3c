"""Elements of tensors as HDF5 holds them: where it has no such type, their bits as integers."""

import numpy as np
import torch

from .errors import CheckpointError

_NATIVE = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
    torch.uint32, torch.uint64, torch.float16, torch.float32, torch.float64, torch.complex64,
    torch.complex128,
]  # fmt: skip
_AS_BITS = {
    torch.bfloat16: torch.uint16, torch.complex32: torch.uint32,
    torch.float8_e4m3fn: torch.uint8, torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2: torch.uint8, torch.float8_e5m2fnuz: torch.uint8,
    torch.float8_e8m0fnu: torch.uint8,
}  # fmt: skip
_by_name = {str(dtype).removeprefix("torch."): dtype for dtype in (*_NATIVE, *_AS_BITS)}
_names = {dtype: name for name, dtype in _by_name.items()}


def dtype_name(dtype):
    """The name under which a torch.dtype is written, "bfloat16"; KeyError for one that is not."""
    return _names[dtype]


def dtype_of(name):
    """The torch.dtype of a name that is written in a checkpoint."""
    if name not in _by_name:
        raise CheckpointError(f"a tensor of dtype {name!r}: expected one of {sorted(_by_name)}")
    return _by_name[name]


def is_storable(dtype):
    return dtype in _names


def stored_dtype(dtype):
    """The numpy.dtype of a dataset that holds such elements."""
    return torch.empty(0, dtype=_AS_BITS.get(dtype, dtype)).numpy().dtype


def to_array(tensor):
    """A tensor's elements as a numpy array of stored_dtype(); its memory, where that is dense."""
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return tensor.view(_AS_BITS.get(tensor.dtype, tensor.dtype)).numpy()


def to_tensor(array, dtype):
    """The CPU tensor of a numpy array that was read."""
    array = np.asarray(array)
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return torch.from_numpy(native.reshape(array.shape)).view(dtype)
