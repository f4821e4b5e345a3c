"""The workers' part of having fused kernels: each process loads, or compiles, its own."""

import torch

from .registry import kernel
from .timeline import on_all_workers


@kernel("dtorch.fused.states")
def _states(context, texts):
    from ..fusion.kernels import FAILED, of_process

    ((_, rows), _), = context.local_slices
    # On another device kernels would be Triton's: there they are given up.
    states = [of_process().state(text) if context.device.type == "cpu" else FAILED
              for text in texts]  # fmt: skip
    return torch.tensor([states] * rows, dtype=torch.int64)


def ask_workers(texts, running):
    """A future of each worker's states of kernels, [workers, kernels]."""
    from ..tensor import to_torch_async

    states = on_all_workers("fused.states", [texts], running.num_workers, len(texts))
    return to_torch_async(states)
