"""torch.load onto the dtorch device."""

import torch


class _Arriving(torch.UntypedStorage):
    """A file's bytes, in the client's memory, of tensors that are on their way to the workers.

    PyTorch makes the tensor on the storage's device and sets it to the storage; capture then
    sends the value (set_from_storage in src/capture/copies.cpp).
    """

    @property
    def device(self):
        return torch.device("dtorch", 0)


def _deserialize(storage, location):
    if not location.startswith("dtorch"):
        return None
    arriving = _Arriving(storage.nbytes())
    arriving.copy_(storage)
    return arriving


def install():
    # Before PyTorch's own rule for this kind of device, which asks for storage there.
    torch.serialization.register_package(15, lambda storage: None, _deserialize)
