"""What is wrong with a checkpoint."""

import os


class CheckpointError(RuntimeError):
    """A checkpoint that could not be written, or that is not what its manifest says.

    The text names the file. One that could not be written is not there at all, and those before it
    are as they were.
    """


def reason_of(error):
    """An error in a line."""
    # HDF5 puts a page of details after its first line.
    reason = str(error).partition("\n")[0] or type(error).__name__
    if isinstance(error, OSError) and error.errno and os.strerror(error.errno) not in reason:
        return f"{os.strerror(error.errno)} ({reason})"
    return reason
