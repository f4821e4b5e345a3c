"""What is wrong with a checkpoint."""


class CheckpointError(RuntimeError):
    """A checkpoint that could not be written, or that is not what its manifest says.

    The text names the file. One that could not be written is not there at all, and those before it
    are as they were.
    """
