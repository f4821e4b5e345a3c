"""Memory for a worker's part of a new tensor."""

import torch

from .registry import kernel


@kernel("dtorch.empty")
def _empty(context):
    (slices,), (dtype,) = context.local_slices, context.dtypes
    return torch.empty([size for _, size in slices], dtype=dtype, device=context.device)
