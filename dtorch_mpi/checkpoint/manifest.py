"""manifest.json: which files a checkpoint has, how long they are, and their SHA-256.

Written last: a folder with one is a checkpoint.
"""

import hashlib
import json
from pathlib import Path

from ..kernels.registry import going_on
from ..version import __version__
from .errors import CheckpointError
from .folder import MANIFEST, sync

FORMAT = "dtorch_mpi checkpoint 1"
_PIECE = 1 << 24  # bytes read at once


def entry(path):
    """{"size", "sha256"} of a file as it is."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while part := file.read(_PIECE):
            digest.update(part)
            going_on()
        return {"size": file.tell(), "sha256": digest.hexdigest()}


def write_text(path, text):
    """Write a file and have it on the disk."""
    Path(path).write_text(text, encoding="utf-8")
    sync(path)


def write(folder, files):
    """files: {name: entry}."""
    content = {"format": FORMAT, "dtorch_mpi": __version__, "files": files}
    write_text(folder / MANIFEST, json.dumps(content, indent=1))


def read(folder):
    """{name: entry} of the files; raises CheckpointError for a manifest that is none."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise CheckpointError(
                f"{path} is of format {content['format']!r}, and this version reads {FORMAT!r}"
            )
        return {
            name: {"size": int(file["size"]), "sha256": str(file["sha256"])}
            for name, file in content["files"].items()
        }
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is damaged ({type(error).__name__}: {error}): take another checkpoint"
        ) from error


def check_sizes(folder, files):
    """Raise CheckpointError, naming the file, where one is missing or has another length."""
    for name, file in files.items():
        path = Path(folder) / name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise CheckpointError(
                f"{path} is missing or can't be read ({error.strerror}): the checkpoint is "
                "damaged, or this node does not see the file system it is on"
            ) from error
        if size != file["size"]:
            raise CheckpointError(
                f"{path} has {size} bytes, and {MANIFEST} says {file['size']}: it was cut short "
                "or written to since; take another checkpoint"
            )


def check_content(folder, name, file):
    """Raise CheckpointError where a file's content is not what it was."""
    path = Path(folder) / name
    try:
        found = entry(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    if found != file:
        raise CheckpointError(
            f"{path} is damaged: its SHA-256 is {found['sha256'][:16]}..., and {MANIFEST} says "
            f"{file['sha256'][:16]}...; take another checkpoint"
        )
