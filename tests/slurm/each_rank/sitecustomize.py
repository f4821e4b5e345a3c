"""Python imports this on every rank: of a script under `dtorch_mpi run` workers run no line."""

import rank_kernels  # noqa: F401
