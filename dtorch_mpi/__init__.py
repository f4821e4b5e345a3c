"""One PyTorch program that drives every rank of an MPI job.

    import torch, dtorch_mpi as dt
    dt.init()
    x = torch.randn(4, 4, device="dtorch")
    print((x @ x).sum().item())
"""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.tensor import Partial, Replicate, Shard

# `info` and `doctor` of `python -m dtorch_mpi` tell what is wrong where the rest can't be
# imported. While python imports a package for -m, that stands for the program's name.
if sys.argv[:2] not in (["-m", "info"], ["-m", "doctor"]):
    from .api import *  # noqa: F403
    from .api import __all__ as _names

    __all__ = [*_names, "Partial", "Replicate", "Shard"]


def __getattr__(name):
    # Those of PyTorch are imported once they are asked for: mesh.py says why.
    if name not in ("Partial", "Replicate", "Shard"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch.distributed import tensor

    found = globals()[name] = getattr(tensor, name)
    return found
