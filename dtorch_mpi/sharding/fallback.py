"""The way that is always right: every worker runs the operator on the whole tensors."""

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate

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
        fallback=any(given.placements != whole and given.meta.numel() for given in inputs),
        reason=reason,
    )
