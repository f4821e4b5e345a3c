"""What goes into a sharding decision and what comes out."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement

Placements = tuple[Placement, ...]


@dataclass(frozen=True)
class ShardedMeta:
    """A distributed tensor: its global metadata, and how it lies on a mesh."""

    meta: torch.Tensor  # on device meta: global sizes, strides, dtype
    mesh: DeviceMesh
    placements: Placements


@dataclass(frozen=True)
class OpSharding:
    """How the workers run one operator, each on its own shards.

    Before it: bring each distributed input to ``inputs``, and replace the arguments named in
    ``local_sizes`` and ``local_strides``. After it: bring the inputs named in ``restore``,
    which the operator wrote to, back to the placements given there.
    """

    inputs: list[Placements]  # of each distributed input, args before kwargs
    outputs: list[Placements | None]  # of each output, lists flattened; None for no tensor
    # Position of an argument in the schema -> the output whose local sizes go there.
    local_sizes: dict[int, int] = field(default_factory=dict)
    # The same for strides: those of a dense tensor with dims in the global order.
    local_strides: dict[int, int] = field(default_factory=dict)
    restore: dict[int, Placements] = field(default_factory=dict)  # input -> placements
    # True where no rule served or a sharded input is gathered; ``reason`` says why.
    fallback: bool = False
    reason: str = ""
    # A cheaper way than the above, to be called with the operator's own arguments: it runs
    # other operators and returns the same results.
    decomposition: Callable | None = None
