"""All rules of our own: importing their modules enters them."""

from dtorch_mpi.sharding import (  # noqa: F401
    decompositions_rows,
    rules_along_dim,
    rules_elementwise,
    rules_linalg,
    rules_random,
    rules_spatial,
)
from dtorch_mpi.sharding.rules import OWN_RULES
from dtorch_mpi.sharding.rules_views import VIEW_OF

__all__ = ["OWN_RULES", "VIEW_OF"]
