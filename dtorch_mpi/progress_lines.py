"""`dt.progress`: tqdm's bar on a terminal, lines in a log."""

import io
import os
import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def progress(iterable: Iterable | None = None, *, every: float = 10.0, **options: Any) -> tqdm:
    """A tqdm over `iterable`, which writes lines where nobody watches a bar.

    That is where stderr is no terminal, or in a Slurm job. With a launcher the program runs on
    rank 0 only, so one rank shows it.

        for batch in dt.progress(batches, desc="training", unit="step"):

    Args:
        iterable: what to loop over; None to call update() by hand, with `total`.
        every: seconds between two lines, at least.
        options: others of tqdm's: total, desc, unit, ... ; all methods are its own.
    """
    file = options.get("file") or sys.stderr
    if file.isatty() and not os.environ.get("SLURM_JOB_ID"):
        return tqdm(iterable, **options)
    return _Lines(iterable, mininterval=every, maxinterval=every, **options)


class _Lines(tqdm):
    """A tqdm that writes one line for each time that it would draw."""

    def __str__(self):
        now = self.format_dict
        parts = ["{n_fmt}/{total_fmt} {unit}" if now["total"] else "{n_fmt} {unit}"]
        if now["n"]:
            parts += ["{elapsed}", "{remaining} left"] if now["total"] else ["{elapsed}"]
            parts += ["{rate_fmt}{postfix}"]
        name = "{desc}: " if now["prefix"] else ""
        return self.format_meter(**now | {"bar_format": name + ", ".join(parts), "ncols": None})

    def display(self, msg=None, pos=None):
        self.fp.write(f"{msg or self}\n")
        self.fp.flush()

    def close(self):
        if not self.disable and self.n != self.last_print_n:
            self.display()
        self.fp = io.StringIO()  # what ends a bar is not for a log
        super().close()
