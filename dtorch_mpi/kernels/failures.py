"""What a worker tells of an exception in a Python kernel."""

import linecache
import os
import traceback

from ..call_sites import LIBRARY_FOLDERS

# Kernels of this package are at fault themselves.
_FOLDERS = LIBRARY_FOLDERS[1:]


def describe(kind, error, trace):
    """An exception's type and text, and the innermost line outside PyTorch and Python's library."""
    name = getattr(kind, "__qualname__", str(kind))
    text = f"{name}: {error}" if str(error) else name
    frames = traceback.extract_tb(trace) if trace is not None else []
    own = [frame for frame in frames if not frame.filename.startswith(("<frozen ", *_FOLDERS))]
    if not frames:
        return text
    frame = (own or frames)[-1]
    line = linecache.getline(frame.filename, frame.lineno).strip()
    place = f"{os.path.abspath(frame.filename)}:{frame.lineno} in {frame.name}"
    return f"{text}\n  raised at {place}" + (f": {line}" if line else "")
