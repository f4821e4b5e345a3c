"""Checkpoints: a program's state in HDF5 files, each worker's parts in its own.

A checkpoint is a folder: worker-*.h5 with what each worker wrote, index.h5 in which every tensor
has its name and is whole, state.json with the nesting and all that is no tensor, and manifest.json
with the files' sizes and checksums. Nothing in it is ever executed.
"""

from . import worker_reading, worker_writing  # noqa: F401 -- they register kernels
from .checkpointer import REQUEUE_CODE, Checkpointer
from .errors import CheckpointError
from .exchange import export_safetensors, export_torch, import_safetensors, import_torch
from .folder import latest
from .loading import load
from .random_state import RandomState
from .saving import SaveFuture, save, save_async

__all__ = [
    "REQUEUE_CODE", "CheckpointError", "Checkpointer", "RandomState", "SaveFuture",
    "export_safetensors", "export_torch", "import_safetensors", "import_torch", "latest", "load",
    "save", "save_async",
]  # fmt: skip
