"""Where one step of the user's program ends.

What the controller has seen before it replays, and it cuts the program at these places (and at
each value that is read). Every `torch.optim` optimizer marks its own.
"""

from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _core
from .runtime import is_initialized


def mark_step() -> None:
    """Say that a step of the program ends here, such as one token of many or one batch of a test.

    Never needed: it helps where no value is read and no optimizer steps. Does not wait.
    """
    if is_initialized():
        _core.emit_mark()


register_optimizer_step_post_hook(lambda optimizer, args, kwargs: mark_step())
