"""New tensors on a mesh, of which each worker makes its own part only.

As torch.distributed.tensor's: `size` is the global size. Without a mesh a tensor is replicated on
all workers, as torch's own factories make it. Random ones hold the same numbers under any
placements.
"""

from collections.abc import Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh

from .kernels import call
from .mesh import GivenPlacements, check_placements


def empty(*size: int | Sequence[int], dtype: torch.dtype | None = None,
          mesh: DeviceMesh | None = None, placements: GivenPlacements = None,
          requires_grad: bool = False) -> torch.Tensor:
    """Memory that is not set."""
    return _made(_meta(size, dtype), mesh, placements, requires_grad)


def zeros(*size: int | Sequence[int], dtype: torch.dtype | None = None,
          mesh: DeviceMesh | None = None, placements: GivenPlacements = None,
          requires_grad: bool = False) -> torch.Tensor:
    return _made(_meta(size, dtype), mesh, placements, requires_grad, torch.Tensor.zero_)


def ones(*size: int | Sequence[int], dtype: torch.dtype | None = None,
         mesh: DeviceMesh | None = None, placements: GivenPlacements = None,
         requires_grad: bool = False) -> torch.Tensor:
    return full(*size, fill_value=1, dtype=dtype or torch.get_default_dtype(), mesh=mesh,
                placements=placements, requires_grad=requires_grad)


def full(*size: int | Sequence[int] | complex, fill_value: complex | None = None,
         dtype: torch.dtype | None = None,
         mesh: DeviceMesh | None = None, placements: GivenPlacements = None,
         requires_grad: bool = False) -> torch.Tensor:
    """`full((2, 3), 7)` or `full(2, 3, fill_value=7)`; the value's dtype unless one is given."""
    if fill_value is None:
        if len(size) != 2 or isinstance(size[0], int):
            raise TypeError(f"full() needs a size and a value, as full((2, 3), 7); got {size}")
        size, fill_value = size
    meta = torch.full(_sizes(size), fill_value, dtype=dtype, device="meta")
    return _made(meta, mesh, placements, requires_grad, lambda made: made.fill_(fill_value))


def rand(*size: int | Sequence[int], dtype: torch.dtype | None = None,
         generator: torch.Generator | None = None,
         mesh: DeviceMesh | None = None, placements: GivenPlacements = None,
         requires_grad: bool = False) -> torch.Tensor:
    """Uniform numbers in [0, 1)."""
    return _made(_meta(size, dtype), mesh, placements, requires_grad,
                 lambda made: made.uniform_(generator=generator))


def randn(*size: int | Sequence[int], dtype: torch.dtype | None = None,
          generator: torch.Generator | None = None,
          mesh: DeviceMesh | None = None, placements: GivenPlacements = None,
          requires_grad: bool = False) -> torch.Tensor:
    """Standard normal numbers."""
    return _made(_meta(size, dtype), mesh, placements, requires_grad,
                 lambda made: made.normal_(generator=generator))


def randint(low: int, high: int | Sequence[int], size: Sequence[int] | None = None, *,
            dtype: torch.dtype = torch.int64, generator: torch.Generator | None = None,
            mesh: DeviceMesh | None = None,
            placements: GivenPlacements = None) -> torch.Tensor:
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
