"""One PyTorch program that drives every rank of an MPI job.

    import torch, dtorch_mpi as dt
    dt.init()
    x = torch.randn(4, 4, device="dtorch")
    print((x @ x).sum().item())
"""

import sys

# `info` and `doctor` of `python -m dtorch_mpi` tell what is wrong where the rest can't be
# imported. While python imports a package for -m, that stands for the program's name.
if sys.argv[:2] not in (["-m", "info"], ["-m", "doctor"]):
    from .api import *  # noqa: F403
    from .api import __all__ as __all__
