"""Which worker writes which part of a tensor: each part once, whoever else has a copy."""

import itertools
import math

from .. import _sharding

SHARD = 1  # the low byte of a packed placement


class Layout:
    """How tensors lie on a mesh.

    shape: of the mesh. workers: row-major. packed: placements, none of them partial.
    """

    def __init__(self, shape, workers, packed):
        self.shape, self.workers, self.packed = list(shape), list(workers), list(packed)
        self._copied = [axis for axis, p in enumerate(packed) if p & 0xFF != SHARD]
        self.num_copies = math.prod(shape[axis] for axis in self._copied)

    def members(self):
        """(worker, coordinate) of each."""
        return zip(self.workers, itertools.product(*map(range, self.shape)), strict=True)

    def copy_of(self, coordinate):
        """Which copy of the tensor the worker at a coordinate has a part of."""
        number = 0
        for axis in self._copied:
            number = number * self.shape[axis] + coordinate[axis]
        return number

    def part(self, sizes, coordinate):
        """(offsets, sizes) of the part there."""
        place = sizes, self.shape, self.packed, list(coordinate)
        return _sharding.local_offsets(*place), _sharding.local_sizes(*place)

    def parts(self, sizes, copy):
        """[(worker, offsets, sizes)] of the parts of one copy that have elements."""
        found = [
            (worker, *self.part(sizes, coordinate))
            for worker, coordinate in self.members()
            if self.copy_of(coordinate) == copy
        ]
        return [part for part in found if math.prod(part[2])]

    def own_part(self, sizes, copy, worker):
        """(offsets, sizes) of what this worker writes of that copy; None: nothing."""
        for member, coordinate in self.members():
            if member == worker and self.copy_of(coordinate) == copy:
                offsets, local = self.part(sizes, coordinate)
                return (offsets, local) if math.prod(local) else None
        return None


def choose_copies(tensors):
    """The number of the copy to write of each tensor, so that workers write about as much.

    tensors: (Layout, bytes) of each.
    """
    written = {}  # worker -> bytes
    chosen = [0] * len(tensors)
    for index in sorted(range(len(tensors)), key=lambda i: -tensors[i][1]):
        layout, nbytes = tensors[index]
        holders = [[] for _ in range(layout.num_copies)]
        for worker, coordinate in layout.members():
            holders[layout.copy_of(coordinate)].append(worker)
        copy = min(
            range(layout.num_copies),
            key=lambda c: max(written.get(worker, 0) for worker in holders[c]),
        )
        for worker in holders[copy]:
            written[worker] = written.get(worker, 0) + nbytes / len(holders[copy])
        chosen[index] = copy
    return chosen
