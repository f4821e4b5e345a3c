"""Which lines of a program are the user's: those outside PyTorch, Python's library and us."""

import os
import sys

import torch

LIBRARY_FOLDERS = tuple(
    folder + os.sep
    for folder in (
        os.path.dirname(os.path.abspath(__file__)), os.path.dirname(torch.__file__),
        os.path.dirname(os.__file__),
    )
)


def user_frame():
    """The innermost frame of the user's on this thread, or None."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(("<frozen ", *LIBRARY_FOLDERS)):
        frame = frame.f_back
    return frame
