"""PyTorch's placements as the integers that records carry."""

from collections.abc import Iterable

from torch.distributed.tensor import Partial, Placement, Replicate, Shard

REDUCE_OPS = ("sum", "avg", "product", "min", "max")


def is_representable(placement: Placement | None) -> bool:
    """Whether a worker knows the placement: not its private kinds, strided or masked."""
    return type(placement) in (Replicate, Shard) or (
        type(placement) is Partial and placement.reduce_op in REDUCE_OPS
    )


def pack(placements: Iterable[Placement]) -> list[int]:
    """One integer a mesh axis: kind, reduction << 8, dim << 16, as ``Placement::packed``.

    Raises TypeError for a placement that workers do not know.
    """
    packed = []
    for placement in placements:
        if not is_representable(placement):
            raise TypeError(
                f"expected Replicate, Shard or Partial with one of {REDUCE_OPS}, got {placement!r}"
            )
        if isinstance(placement, Shard):
            packed.append(1 | placement.dim << 16)
        elif isinstance(placement, Partial):
            packed.append(2 | REDUCE_OPS.index(placement.reduce_op) << 8)
        else:
            packed.append(0)
    return packed


def unpack(packed: Iterable[int]) -> tuple[Placement, ...]:
    """The placements that :func:`pack` packed."""
    return tuple(map(unpack_one, packed))


def unpack_one(value: int) -> Placement:
    """The placement on one axis."""
    if value & 0xFF == 1:
        return Shard(value >> 16)
    if value & 0xFF == 2:
        return Partial(REDUCE_OPS[value >> 8 & 0xFF])
    return Replicate()
