"""The way that is always right: every worker runs the operator on the whole tensors."""

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

from dtorch_mpi.sharding.op_sharding import OpSharding, ShardedMeta


def replicate_everything(
    mesh: DeviceMesh,
    inputs: list[ShardedMeta],
    outputs: list,
    written: frozenset[int],
    reason: str,
) -> OpSharding:
    """Replicate all inputs; those that are written to go back to their placements after."""
    whole = (Replicate(),) * mesh.ndim
    return OpSharding(
        inputs=[whole] * len(inputs),
        outputs=[None if output is None else whole for output in outputs],
        restore={
            index: inputs[index].placements
            for index in sorted(written)
            if inputs[index].placements != whole
        },
        fallback=is_gathered(inputs),
        reason=reason,
    )


def is_gathered(inputs: list[ShardedMeta]) -> bool:
    """Whether replicating the inputs moves anything."""
    return any(
        given.meta.numel() and any(isinstance(p, Shard) for p in given.placements)
        for given in inputs
    )
