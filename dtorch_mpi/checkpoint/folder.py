"""The folder that checkpoints are kept in: a folder for each, named by number.

One is written in a folder aside and gets its name at once, by a rename, when all of it is on the
disk. So what has a name of digits is whole, at whichever moment a program was killed.
"""

import os
import re
import shutil
import uuid
from pathlib import Path

from .errors import CheckpointError

MANIFEST = "manifest.json"
STATE = "state.json"
_ASIDE = re.compile(r"\.\d+\.(writing|deleting)-[0-9a-f]+")


def numbers(root):
    """The numbers of the checkpoints there, in order."""
    try:
        names = os.listdir(root)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = (int(name) for name in names if re.fullmatch(r"\d{8,}", name))
    return sorted(n for n in found if (of_number(root, n) / MANIFEST).exists())


def of_number(root, number):
    return Path(root) / f"{number:08d}"


def latest(path: str | os.PathLike) -> Path | None:
    """The folder of the newest checkpoint under `path`, a pathlib.Path; None if there is none."""
    found = numbers(path)
    return of_number(path, found[-1]) if found else None


def resolve(path):
    """The folder of the checkpoint that a path names, itself or as the newest under it."""
    path = Path(path).absolute()
    if (path / MANIFEST).exists():
        return path
    newest = latest(path)
    if newest is None:
        raise CheckpointError(
            f"no checkpoint in {path}: expected a folder with {MANIFEST}, or with such folders "
            "under numbers, as dtorch_mpi.checkpoint.save makes them"
        )
    return newest


def check_is_writable(root):
    """Raise CheckpointError where no checkpoint could be written; makes the folder."""
    try:
        begin(root)[0].rmdir()
    except OSError as error:
        raise CheckpointError(
            f"checkpoints can't be written in {root}: {error.strerror}; choose another folder"
        ) from error


def begin(root):
    """(folder aside to write the next one in, the folder that it will be)."""
    root = Path(root).absolute()
    root.mkdir(parents=True, exist_ok=True)
    for name in os.listdir(root):
        if _ASIDE.fullmatch(name):  # of a program that was killed
            shutil.rmtree(root / name, ignore_errors=True)
    number = max(numbers(root), default=0) + 1
    # A folder of that name without a manifest is none of ours.
    while of_number(root, number).exists():
        number += 1
    aside = root / f".{number:08d}.writing-{uuid.uuid4().hex[:8]}"
    aside.mkdir()
    return aside, of_number(root, number)


def publish(aside, final):
    """Give a folder whose files are on the disk its name."""
    sync(aside)
    os.rename(aside, final)
    sync(final.parent)


def prune(root, keep):
    """Delete all but the `keep` newest."""
    for number in numbers(root)[:-keep]:
        old = of_number(root, number)
        # Its name goes first: a folder that lacks files must not look like a checkpoint.
        aside = old.with_name(f".{number:08d}.deleting-{uuid.uuid4().hex[:8]}")
        os.rename(old, aside)
        shutil.rmtree(aside, ignore_errors=True)


def sync(path):
    """Have a file, or a folder's names, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
