"""Telling the user which calls gathered their inputs, and where they were made."""

import warnings
from collections import Counter

from ..call_sites import user_frame

_fallbacks = Counter()


class FallbackWarning(UserWarning):
    """An operator's inputs were gathered for want of a better way to run it on their placements.

    Its results are right. Python's own filters switch it off, or make it an error.
    """


def note_fallback(operator: str, placements: tuple[str, ...]) -> None:
    """Count a call, and warn of it, at the user's line: once for each operator there."""
    _fallbacks[operator, placements] += 1
    frame = user_frame()
    if frame is None:
        return
    # Without placements: Python's filters tell one warning from another by its text too.
    warnings.warn_explicit(
        f"{operator} gathers inputs that are sharded, so that workers hold more than their shards. "
        f"dt.debug.fallbacks() lists such calls and their placements",
        FallbackWarning, frame.f_code.co_filename, frame.f_lineno,
        module=frame.f_globals.get("__name__", "<unknown>"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def fallback_counts() -> dict[tuple[str, tuple[str, ...]], int]:
    """How often each operator gathered inputs of these placements."""
    return dict(_fallbacks)
