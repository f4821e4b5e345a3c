"""What `import dtorch_mpi` gives: the names of `__all__`, and the device in PyTorch."""

import torch

from . import device_module
from .version import __version__

torch.utils.rename_privateuse1_backend("dtorch")
torch._register_device_module("dtorch", device_module)
torch.utils.generate_methods_for_privateuse1_backend(for_storage=False)

from . import checkpoint, data, debug, kernels  # noqa: E402
from .configuration import config  # noqa: E402
from .errors import WorkerError  # noqa: E402
from .factories import empty, full, ones, rand, randint, randn, zeros  # noqa: E402
from .future import TensorFuture, VoidFuture  # noqa: E402
from .graphs import Graph  # noqa: E402
from .kernels import python_kernel, use_kernels  # noqa: E402
from .mesh import init_device_mesh  # noqa: E402
from .passes import graph_pass  # noqa: E402
from .profiler import Profile, profile  # noqa: E402
from .progress_lines import progress  # noqa: E402
from .registration import register  # noqa: E402
from .runtime import init, is_initialized, num_workers, shutdown, sync, sync_future  # noqa: E402
from .sharding.fallback_log import FallbackWarning  # noqa: E402
from .sharding.users_rules import register_sharding  # noqa: E402
from .statistics import stats  # noqa: E402
from .steps import mark_step  # noqa: E402
from .tensor import distribute_module, distribute_tensor, full_tensor, local_shards  # noqa: E402

register()

__all__ = [
    "FallbackWarning", "Graph", "Profile", "TensorFuture", "VoidFuture", "WorkerError",
    "__version__", "checkpoint", "config", "data", "debug", "distribute_module",
    "distribute_tensor", "empty", "full", "full_tensor", "graph_pass", "init", "init_device_mesh",
    "is_initialized", "kernels", "local_shards", "mark_step", "num_workers", "ones", "profile",
    "progress", "python_kernel", "rand", "randint", "randn", "register_sharding", "shutdown",
    "stats", "sync", "sync_future", "use_kernels", "zeros",
]  # fmt: skip
