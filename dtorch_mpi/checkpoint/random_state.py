"""The states of random number generators, as a part of a checkpoint."""

import random
from typing import Any

import torch


class RandomState:
    """Stands for the program's generators in a state; saved and restored like a module.

        dt.checkpoint.save("checkpoints", {"model": model, "random": dt.checkpoint.RandomState()})

    These are the device's (one for all workers, whose numbers depend on no mesh), PyTorch's on the
    CPU, and that of Python's `random`. numpy's is the program's own matter.
    """

    def state_dict(self) -> dict[str, Any]:
        """{"dtorch", "torch": uint8 tensors, "python": nested tuple}."""
        return {
            "dtorch": torch.get_device_module("dtorch").get_rng_state(),
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.get_device_module("dtorch").set_rng_state(state["dtorch"])
        torch.set_rng_state(state["torch"])
        random.setstate(state["python"])
