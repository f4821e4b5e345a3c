"""New tensors on a mesh, of which each worker makes its own part only.

As torch.distributed.tensor's: `size` is the global size. Without a mesh a tensor is replicated on
all workers, as torch's own factories make it. Random ones hold the same numbers under any
placements.
"""

import torch

from .kernels import call
from .mesh import check_placements


def empty(*size, dtype=None, mesh=None, placements=None, requires_grad=False):
    """Memory that is not set."""
    return _made(_meta(size, dtype), mesh, placements, requires_grad)


def zeros(*size, dtype=None, mesh=None, placements=None, requires_grad=False):
    return _made(_meta(size, dtype), mesh, placements, requires_grad, torch.Tensor.zero_)


def ones(*size, dtype=None, mesh=None, placements=None, requires_grad=False):
    return full(*size, fill_value=1, dtype=dtype or torch.get_default_dtype(), mesh=mesh,
                placements=placements, requires_grad=requires_grad)


def full(*size, fill_value=None, dtype=None, mesh=None, placements=None, requires_grad=False):
    """`full((2, 3), 7)` or `full(2, 3, fill_value=7)`; the value's dtype unless one is given."""
    if fill_value is None:
        if len(size) != 2 or isinstance(size[0], int):
            raise TypeError(f"full() needs a size and a value, as full((2, 3), 7); got {size}")
        size, fill_value = size
    meta = torch.full(_sizes(size), fill_value, dtype=dtype, device="meta")
    return _made(meta, mesh, placements, requires_grad, lambda made: made.fill_(fill_value))


def rand(*size, dtype=None, generator=None, mesh=None, placements=None, requires_grad=False):
    """Uniform numbers in [0, 1)."""
    return _made(_meta(size, dtype), mesh, placements, requires_grad,
                 lambda made: made.uniform_(generator=generator))


def randn(*size, dtype=None, generator=None, mesh=None, placements=None, requires_grad=False):
    """Standard normal numbers."""
    return _made(_meta(size, dtype), mesh, placements, requires_grad,
                 lambda made: made.normal_(generator=generator))


def randint(low, high, size=None, *, dtype=torch.int64, generator=None, mesh=None,
            placements=None):
    """Integers from `low` (0 if left out) up to `high`, which is not among them."""
    if size is None:
        low, high, size = 0, low, high
    return _made(_meta((size,), dtype), mesh, placements, False,
                 lambda made: made.random_(low, high, generator=generator))


def _sizes(size):
    return size if len(size) != 1 or isinstance(size[0], int) else tuple(size[0])


def _meta(size, dtype):
    return torch.empty(_sizes(size), dtype=dtype, device="meta")


def _made(meta, mesh, placements, requires_grad, fill=None):
    if mesh is None:
        if placements is not None:
            raise ValueError(f"placements {placements} without a mesh: say on which, mesh=...")
        made = torch.empty(meta.shape, dtype=meta.dtype, device="dtorch")
    else:
        placements = check_placements(mesh, placements, meta.dim())
        if any(placement.is_partial() for placement in placements):
            raise ValueError(f"a new tensor can't be placed as {placements}: it has no partial "
                             "sums; use Shard or Replicate")
        made = call("dtorch.empty", [], sizes=meta.shape, dtype=meta.dtype, mesh=mesh,
                    placements=placements)
    if fill is not None:
        fill(made)
    return made.requires_grad_(requires_grad)
