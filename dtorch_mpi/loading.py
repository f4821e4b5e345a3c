"""torch.load onto the dtorch device."""

import torch


class _Arriving(torch.UntypedStorage):
    """A file's bytes, in the client's memory, of tensors that are on their way to the workers.

    PyTorch makes each tensor on the storage's device and sets it to the storage; capture then
    makes it a view of what arrived() gives (set_from_storage in src/capture/copies.cpp).
    """

    @property
    def device(self):
        return torch.device("dtorch", 0)

    def sent(self, dtype):
        """The content as a 1-D tensor on the workers, which hold it once for each dtype."""
        known = self.__dict__.setdefault("_sent", {})
        if dtype not in known:
            known[dtype] = self._elements(dtype).to("dtorch")
        return known[dtype]

    def _set_from_file(self, *arguments):
        # Files older than the zip format: tensors are made first, and read into then.
        super()._set_from_file(*arguments)
        for dtype, tensor in self.__dict__.get("_sent", {}).items():
            tensor.copy_(self._elements(dtype))

    def _elements(self, dtype):
        content = torch.empty(0, dtype=torch.uint8).set_(self)
        return content[: self.nbytes() // dtype.itemsize * dtype.itemsize].view(dtype)


def arrived(storage, dtype):
    """A storage's content as a 1-D tensor on the workers. Raises RuntimeError for a user's own."""
    if not isinstance(storage, _Arriving):
        raise RuntimeError(
            f"a dtorch tensor can't be set to a storage on {storage.device}: it has none on the "
            "client. Make a tensor of the storage and copy it with .to('dtorch')"
        )
    return storage.sent(dtype)


def _deserialize(storage, location):
    if not location.startswith("dtorch"):
        return None
    arriving = _Arriving(storage.nbytes())
    arriving.copy_(storage)
    return arriving


def install():
    # Before PyTorch's own rule for this kind of device, which asks for storage there.
    torch.serialization.register_package(15, lambda storage: None, _deserialize)
