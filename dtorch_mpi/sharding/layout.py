"""Sizes of shards, as the workers cut them, and the bytes that moving them takes."""

from functools import lru_cache
from itertools import combinations

from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from dtorch_mpi.sharding.op_sharding import Placements

# A collective's fixed cost, in bytes that could be moved meanwhile.
_LATENCY = 2048.0
# Copying a byte on one worker, against moving it between workers.
_COPY = 0.01


def piece_sizes(size: int, count: int) -> list[int]:
    """The sizes of the pieces that torch.chunk makes, empty ones included."""
    step = -(-size // count)
    return [max(min(step, size - step * index), 0) for index in range(count)]


def local_size_range(size: int, counts: tuple[int, ...]) -> tuple[int, int]:
    """The smallest and the largest piece of a dim that axes of these lengths cut in turn."""
    low = high = size
    for count in counts:
        low, high = piece_sizes(low, count)[-1], piece_sizes(high, count)[0]
    return low, high


def local_sizes(
    sizes: tuple[int, ...], mesh_shape: tuple[int, ...], placements: Placements,
    coordinate: tuple[int, ...],
) -> list[int]:
    """The sizes of the shard at a coordinate of the mesh."""
    local = list(sizes)
    for count, placement, index in zip(mesh_shape, placements, coordinate, strict=True):
        if isinstance(placement, Shard):
            local[placement.dim] = piece_sizes(local[placement.dim], count)[index]
    return local


def has_empty_shard(
    sizes: tuple[int, ...], mesh_shape: tuple[int, ...], placements: Placements
) -> bool:
    """Whether some worker's shard of a tensor that is not empty is empty."""
    if 0 in sizes:
        return False
    last = tuple(count - 1 for count in mesh_shape)
    return 0 in local_sizes(sizes, mesh_shape, placements, last)


def is_even(sizes: tuple[int, ...], mesh_shape: tuple[int, ...], placements: Placements) -> bool:
    """Whether all shards have the same sizes."""
    first, last = (0,) * len(mesh_shape), tuple(count - 1 for count in mesh_shape)
    return local_sizes(sizes, mesh_shape, placements, first) == local_sizes(
        sizes, mesh_shape, placements, last
    )


@lru_cache(65536)
def size_class(size: int, mesh_shape: tuple[int, ...]) -> tuple:
    """All that rules ask of a size: is it 0 or 1, and how can each set of axes cut it."""
    cuts = []
    for number in range(1, len(mesh_shape) + 1):
        for counts in combinations(mesh_shape, number):
            low, high = local_size_range(size, counts)
            cuts.append((low == high, low == 0, low == 1))
    return min(size, 2), *cuts


def move_cost(before: Placement, after: Placement, num_bytes: float, count: int) -> float:
    """Bytes a worker moves along one axis; ``num_bytes`` is the tensor's size on that axis."""
    if before == after or count == 1:
        return 0.0
    if isinstance(before, Replicate):
        return _COPY * num_bytes
    share = num_bytes * (count - 1) / count
    if isinstance(before, Partial):
        if isinstance(after, Partial):
            return 3 * share + _LATENCY
        return (share if isinstance(after, Shard) else 2 * share) + _LATENCY
    if isinstance(after, Shard):
        return share / count + _LATENCY
    return share + _LATENCY
