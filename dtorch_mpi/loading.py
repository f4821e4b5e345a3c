"""torch.load(..., map_location="dtorch"): what was saved on another device goes to the workers.

A dtorch tensor has no storage of its own on the client, so each loaded storage is sent once,
as a flat tensor, and the tensors that shared it are views of that one.
"""

import torch

_rebuild_on_host = torch._utils._rebuild_tensor


def _keep_for_the_device(storage, location):
    if not location.startswith("dtorch"):
        return None
    torch.empty(0, device=location)  # raises for an index that is not there
    storage._dtorch_flat = {}
    return storage


def _rebuild(storage, storage_offset, size, stride):
    untyped = storage._untyped_storage
    flat = getattr(untyped, "_dtorch_flat", None)
    if flat is None:
        return _rebuild_on_host(storage, storage_offset, size, stride)
    if storage.dtype not in flat:
        length = untyped.nbytes() // storage.dtype.itemsize
        flat[storage.dtype] = _rebuild_on_host(storage, 0, (length,), (1,)).to("dtorch")
    return flat[storage.dtype].as_strided(size, stride, storage_offset)


def install():
    """Have torch.load know the device. Tensors saved on it need nothing: they travel as CPU's."""
    # Before PyTorch's own rule for this kind of device (23), which would allocate a storage.
    torch.serialization.register_package(15, lambda storage: None, _keep_for_the_device)
    torch._utils._rebuild_tensor = _rebuild
