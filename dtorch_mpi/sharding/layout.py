"""Sizes of shards, as the workers cut them, and the bytes that moving them takes."""

import math
from functools import lru_cache
from itertools import combinations

from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from dtorch_mpi import _sharding
from dtorch_mpi.sharding.op_sharding import Placements
from dtorch_mpi.sharding.placements import pack, unpack_one

# A collective's fixed cost, in bytes that could be moved meanwhile.
_LATENCY = 2048.0
# Copying a byte on one worker, against moving it between workers.
_COPY = 0.01


def piece_size(size: int, count: int, index: int) -> int:
    """The size of one of the pieces that torch.chunk makes, empty ones included."""
    step = -(-size // count)
    return max(min(step, size - step * index), 0)


def local_size_range(size: int, counts: tuple[int, ...]) -> tuple[int, int]:
    """The smallest and the largest piece of a dim that axes of these lengths cut in turn."""
    low = high = size
    for count in counts:
        low, high = piece_size(low, count, count - 1), piece_size(high, count, 0)
    return low, high


def local_sizes(
    sizes: tuple[int, ...], mesh_shape: tuple[int, ...], placements: Placements,
    coordinate: tuple[int, ...],
) -> list[int]:
    """The sizes of the shard at a coordinate of the mesh."""
    local = list(sizes)
    for count, placement, index in zip(mesh_shape, placements, coordinate, strict=True):
        if isinstance(placement, Shard):
            local[placement.dim] = piece_size(local[placement.dim], count, index)
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


def num_pieces(
    sizes: tuple[int, ...], mesh_shape: tuple[int, ...], placements: Placements
) -> int:
    """Into how many parts with elements a tensor is cut."""
    counts = [1] * len(sizes)
    for count, placement in zip(mesh_shape, placements, strict=True):
        if isinstance(placement, Shard):
            counts[placement.dim] *= count
    return math.prod(max(min(pair), 1) for pair in zip(counts, sizes, strict=True))


@lru_cache(65536)
def layouts_between(before: Placements, after: Placements) -> tuple[Placements, ...]:
    """The layouts that a move passes through, its end included."""
    if not any(Partial in (type(b), type(a)) and b != a
               for b, a in zip(before, after, strict=True)):
        return (after,)  # by way of no larger part; see src/sharding/reshard.h
    current, passed = list(before), []
    for axis, _, to in _sharding.plan_redistribute(pack(before), pack(after)):
        current[axis] = unpack_one(to)
        passed.append(tuple(current))
    return tuple(passed)


def gathers(
    sizes: tuple[int, ...], mesh_shape: tuple[int, ...], before: Placements, after: Placements
) -> bool:
    """Whether the largest part that a worker holds grows on the way, but for rounding."""
    if before == after or not any(isinstance(p, Shard) for p in before):
        return False
    first = (0,) * len(mesh_shape)

    def part(placements):
        return math.prod(local_sizes(sizes, mesh_shape, placements, first))

    pieces, largest = num_pieces(sizes, mesh_shape, before), part(before)
    return any(
        num_pieces(sizes, mesh_shape, passed) < pieces and part(passed) > largest
        for passed in layouts_between(before, after)
    )


def capped(size: int) -> int:
    """A size of 0 or 1; 2 for all that are larger."""
    return size if size < 2 else 2


def size_class(size: int, mesh_shape: tuple[int, ...]) -> tuple:
    """All that rules ask of a size: is it 0 or 1, and how can each set of axes cut it."""
    # A symbol can't be looked up. Asking it makes conditions, which is what it is for.
    if type(size) is not int:
        return _size_class.__wrapped__(size, mesh_shape)
    return _size_class(size, mesh_shape)


@lru_cache(65536)
def _size_class(size: int, mesh_shape: tuple[int, ...]) -> tuple:
    cuts = []
    for number in range(1, len(mesh_shape) + 1):
        for counts in combinations(mesh_shape, number):
            low, high = local_size_range(size, counts)
            cuts.append((low == high, low == 0, low == 1))
    return capped(size), *cuts


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
