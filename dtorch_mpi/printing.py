"""Printing a tensor: one read, of the elements that are shown."""

import torch
from torch import _tensor_str as printer

_format_on_host = printer._tensor_str


def _format(tensor, indent):
    if tensor.device.type != "dtorch":
        return _format_on_host(tensor, indent)
    threshold = printer.PRINT_OPTS.threshold
    if tensor.numel() <= threshold:
        return _format_on_host(tensor.cpu(), indent)
    shown = _edges(tensor).cpu()
    printer.PRINT_OPTS.threshold = 0
    try:
        return _format_on_host(shown, indent)
    finally:
        printer.PRINT_OPTS.threshold = threshold


def _edges(tensor):
    """The first and last elements of each dim, and one more, in whose place dots are printed."""
    edge = printer.PRINT_OPTS.edgeitems
    for dim, size in enumerate(tensor.shape):
        if size > 2 * edge + 1:
            ends = [tensor.narrow(dim, 0, edge + 1), tensor.narrow(dim, size - edge, edge)]
            tensor = torch.cat(ends, dim)
    return tensor


def install():
    """Have PyTorch's repr go through here: it reads a tensor on a device element by element."""
    printer._tensor_str = _format
