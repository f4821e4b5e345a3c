"""Checkpoints from and to the files of others: safetensors, and what torch.save writes.

From file to file, in this process and without workers. What is imported is a checkpoint as any
other: loading it on workers, each reads its own part.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from . import folder
from .loading import load
from .saving import save


def export_safetensors(path: str | os.PathLike, file: str | os.PathLike, *, key: str = "model",
                       metadata: dict[str, str] | None = None) -> None:
    """Write the tensors under a key of a checkpoint into a safetensors file.

    path: as for `load`. key: a key of the state; below it, keys of nested dicts are joined with
    dots. metadata: {text: text} to put in the file. The tensors must fit into this process's
    memory. Raises ValueError where there is anything but tensors, KeyError for a missing key.
    """
    from safetensors.torch import save_file

    tensors = {}
    _collect(load(path, device="cpu", only=key)[key], "", tensors)
    _replace(file, lambda aside: save_file(tensors, aside, metadata=metadata))


def import_safetensors(file: str | os.PathLike, path: str | os.PathLike, *, key: str = "model",
                       keep: int | None = None) -> Path:
    """Make a checkpoint {key: {name: tensor}} of a safetensors file; returns its folder.

    path, keep: as for `save`. Raises OSError or safetensors.SafetensorError for a file that can't
    be read.
    """
    from safetensors.torch import load_file

    return save(path, {key: load_file(file)}, keep=keep)


def export_torch(
    path: str | os.PathLike, file: str | os.PathLike, *, key: str | None = None
) -> None:
    """Write a checkpoint's state, or what is under a key of it, as torch.save does: CPU tensors.

    torch.load(file, weights_only=True) reads it. It must fit into this process's memory.
    """
    state = load(path, device="cpu", only=key)
    _replace(file, lambda aside: torch.save(state if key is None else state[key], aside))


def import_torch(file: str | os.PathLike, path: str | os.PathLike, *, key: str | None = None,
                 keep: int | None = None) -> Path:
    """Make a checkpoint of a file that torch.save has written; returns its folder.

    key: the state is {key: content}; None: it is the content. path, keep: as for `save`. The file
    is read with weights_only=True, so that nothing in it is executed: pickle.UnpicklingError for
    one that holds more than tensors and plain values.
    """
    # In a thread of its own: a load that fails leaves its map_location to the thread's later ones,
    # and to what is unpickled there (torch 2.13).
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(torch.load, file, map_location="cpu", weights_only=True)
    content = read.result()
    return save(path, content if key is None else {key: content}, keep=keep)


def _collect(value, place, tensors):
    if isinstance(value, dict):
        for key, item in value.items():
            _collect(item, f"{place}.{key}" if place else str(key), tensors)
    elif isinstance(value, torch.Tensor):
        # Tied ones are the same tensor under two names, which the format refuses.
        known = any(value is other for other in tensors.values())
        tensors[place] = value.clone() if known else value
    else:
        raise ValueError(
            f"{place} is a {type(value).__name__}, and safetensors holds tensors only: take the "
            "key of a state dict that has no other values, or export_torch"
        )


def _replace(file, write):
    """Write a file aside and give it its name when it is on the disk."""
    file = Path(file).absolute()
    aside = file.with_name(f".{file.name}.writing")
    try:
        write(aside)
        folder.sync(aside)
        os.replace(aside, file)
    finally:
        aside.unlink(missing_ok=True)
    folder.sync(file.parent)
