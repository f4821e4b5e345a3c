"""Placements, and moving tensors between them. Placements are packed integers.

mesh: extents of its axes. coordinate: a worker's place along each. groups: one for each axis.
"""

from collections.abc import Sequence

import torch
from torch._C._distributed_c10d import Backend

def define_mesh(number: int, shape: Sequence[int], workers: Sequence[int], /) -> None: ...
def define_sharding(number: int, mesh: int, placements: Sequence[int], /) -> None: ...
def forget_all() -> None: ...
def local_sizes(
    sizes: Sequence[int],
    mesh: Sequence[int],
    placements: Sequence[int],
    coordinate: Sequence[int],
    /,
) -> list[int]: ...
def local_offsets(
    sizes: Sequence[int],
    mesh: Sequence[int],
    placements: Sequence[int],
    coordinate: Sequence[int],
    /,
) -> list[int]: ...
def local_strides(strides: Sequence[int], sizes: Sequence[int], /) -> list[int]: ...
def is_even(sizes: Sequence[int], mesh: Sequence[int], placements: Sequence[int], /) -> bool: ...
def local_slice(
    full: torch.Tensor,
    mesh: Sequence[int],
    placements: Sequence[int],
    coordinate: Sequence[int],
    /,
) -> torch.Tensor: ...
def assemble(
    shards: Sequence[torch.Tensor | None],
    sizes: Sequence[int],
    mesh: Sequence[int],
    placements: Sequence[int],
    /,
) -> torch.Tensor: ...

# (axis, from, to) of each step
def plan_redistribute(
    source: Sequence[int], target: Sequence[int], /
) -> list[tuple[int, int, int]]: ...
def redistribute(
    local: torch.Tensor,
    sizes: Sequence[int],
    mesh: Sequence[int],
    coordinate: Sequence[int],
    groups: list[Backend | None],
    source: Sequence[int],
    target: Sequence[int],
    /,
) -> torch.Tensor: ...
