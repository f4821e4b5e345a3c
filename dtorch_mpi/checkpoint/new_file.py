"""HDF5 files that are written to the end and are on the disk, or are an error.

HDF5 can't be told of a full disk: metadata that it fails to write makes it crash or keep the file
open for good. So it writes into a file object that notes the first error and lets HDF5 go on.
"""

import io
import os

import h5py

from ..kernels.registry import going_on


class NewFile:
    """A new file under a path; `with NewFile(path) as file` closes it and has it on the disk.

    Raises OSError, with the path, at the next check() or the end of the block.
    """

    def __init__(self, path):
        self._target = _Target(path, "x+b")
        self.hdf5 = h5py.File(self._target, "w")

    def check(self):
        """Raise where something could not be written: there is no use in going on."""
        if self._target.error is not None:
            raise self._target.error

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        with self._target:
            try:
                self.hdf5.close()
            finally:
                self.check()
            if kind is None:
                os.fsync(self._target.fileno())


class _Target(io.FileIO):
    """Takes all that it is given. error: the first that was met, an OSError with the path."""

    error = None

    def write(self, content):
        going_on()
        content, written = memoryview(content).cast("B"), 0
        while written < len(content) and self.error is None:
            try:
                written += super().write(content[written:])
            except OSError as error:
                self._note(error)
        return len(content)

    def truncate(self, size=None):
        try:
            return super().truncate(size)
        except OSError as error:
            self._note(error)
            return size

    def _note(self, error):
        if self.error is None:
            self.error = OSError(error.errno, error.strerror, str(self.name))
