"""Pack the source of Python's standard library into an HDF5 file of byte sequences.

    python scripts/prepare_corpus.py out/corpus.h5 --block 128

The file holds two uint8 datasets, `train` and `held_out`, of shape (rows, block + 1). A row is
one training sequence: its first `block` bytes are the input, its last `block` the targets. Rows
of one part follow each other with one byte shared, so every byte is a target once. A zero byte
ends each source file. Whole files are held out, not rows, so that no held-out text is the
continuation of a text that was trained on.
"""

import argparse
import hashlib
import os
import platform
import sys
import sysconfig
from pathlib import Path

import h5py
import numpy as np
from tqdm import tqdm

SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
END_OF_FILE = b"\0"
VOCABULARY = 256


def source_files(root):
    """Return the *.py files under `root` in an order that is the same on every machine.

    Test folders and installed packages are left out. Raises ValueError when none is found.
    """
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
        paths = (Path(folder, name) for name in names if name.endswith(".py"))
        # Distributions link some modules (sitecustomize) to files outside the library.
        found += [path for path in paths if not path.is_symlink()]
    if not found:
        raise ValueError(f"no *.py file under {root}: name a folder of Python source with --source")
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def pack(files, block, progress):
    """Return the bytes of `files` as a uint8 array of shape (rows, block + 1).

    The bytes after the last full row are dropped. Raises ValueError when there is no full row.
    """
    text = bytearray()
    for path in files:
        text += path.read_bytes() + END_OF_FILE
        progress.update()
    if len(text) <= block:
        raise ValueError(
            f"{len(files)} files with {len(text)} bytes in all do not fill one row of {block + 1} "
            "bytes: choose a smaller --block, another --held-out-every or more source"
        )
    data = np.frombuffer(text, dtype=np.uint8)
    return np.lib.stride_tricks.sliding_window_view(data, block + 1)[::block]


def write_corpus(path, root, block, held_out_every):
    """Write the corpus file `path`; return {dataset name: rows}.

    The file appears under its name only when it is complete. Raises ValueError for a block or
    an interval that is too small.
    """
    if block < 1:
        raise ValueError(f"got block {block}, expected at least 1 byte")
    if held_out_every < 2:
        raise ValueError(f"got held_out_every {held_out_every}, expected at least 2 (1 would hold "
                         "out every file)")
    files = source_files(root)
    parts = {
        "train": [f for i, f in enumerate(files) if (i + 1) % held_out_every],
        "held_out": files[held_out_every - 1 :: held_out_every],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    digest = hashlib.sha256()
    rows = {}
    try:
        with (
            h5py.File(aside, "w") as file,
            tqdm(total=len(files), unit="file", desc="packing", disable=None) as progress,
        ):
            for name, members in parts.items():
                packed = np.ascontiguousarray(pack(members, block, progress))
                digest.update(packed)
                file.create_dataset(name, data=packed)
                rows[name] = len(packed)
            file.attrs["block"] = block
            file.attrs["vocabulary"] = VOCABULARY
            file.attrs["source"] = f"{len(files)} *.py files of {root}"
            file.attrs["python"] = platform.python_version()
            file.attrs["sha256"] = digest.hexdigest()
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return rows


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="HDF5 file to write")
    parser.add_argument("--block", type=int, default=128, help="bytes of context (default 128)")
    parser.add_argument("--held-out-every", type=int, default=20, metavar="K",
                        help="hold out every K-th file (default 20)")
    parser.add_argument("--source", type=Path, default=Path(sysconfig.get_paths()["stdlib"]),
                        help="folder of Python source (default: this Python's standard library)")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    try:
        rows = write_corpus(
            arguments.path, arguments.source, arguments.block, arguments.held_out_every
        )
    except ValueError as error:
        sys.exit(f"prepare_corpus.py: {error}")
    print(f"{arguments.path}: {rows['train']} training rows, {rows['held_out']} held-out rows "
          f"of {arguments.block + 1} bytes")


if __name__ == "__main__":
    main()
