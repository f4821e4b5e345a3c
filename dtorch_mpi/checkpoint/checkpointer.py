"""Checkpoints at the step boundaries of a loop, and leaving when the job is asked to stop."""

import math
import os
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from .. import runtime, stop_requests
from ..launch import allocation
from ..launch.allocation import REQUEUE_CODE
from ..log import LOGGER
from . import folder
from .loading import load
from .saving import save, save_async


class Checkpointer:
    """Keeps a training loop's state: goes on where it was, saves as it goes, leaves when asked.

        state = {"model": model, "optimizer": optimizer, "random": dt.checkpoint.RandomState(),
                 "step": 0}
        checkpointer = dt.checkpoint.Checkpointer("checkpoints", state, every_minutes=30, keep=3)
        while state["step"] < 1000:
            train_step()
            state["step"] += 1
            checkpointer.step()

    path, state, keep, single_file: as of `save`. The newest checkpoint in `path` is loaded into the
    state, if there is one: what the program has set before is what a first start begins with.

    every_minutes, every_steps (numbers or None): how often to save; the training goes on meanwhile.

    signals (names): on USR1, USR2 or TERM, to any rank, the job saves at the next `step()` and
    exits with code 85 (`REQUEUE_CODE`), which job scripts turn into a requeue. MPICH's mpirun hands
    on USR1 and not USR2. Under a launcher, USR1 and USR2 that came since `dt.init()` count too;
    else a signal that comes before this object is made does what it did.

    end_time (seconds since 1970, or None): when the job will be ended; by default what Slurm says.
    The job saves and exits with 85 before, as late as the steps and saves so far allow: two steps,
    three saves (at least 60 s until one was seen) and half a minute earlier.

    The workers are kept near: `step()` waits where they are more than two steps and more than half
    a second behind, since what was issued before has to be worked off before the job can save.

    Raises CheckpointError where nothing can be written in `path`, ValueError for a number that is
    not positive, a signal that does not exist, or another thread than the main one; else what
    `load` raises.
    """

    def __init__(
        self, path: str | os.PathLike, state: dict, *, every_minutes: float | None = None,
        every_steps: int | None = None, keep: int | None = None, single_file: bool = False,
        signals: Iterable[str] = ("USR1", "USR2", "TERM"), end_time: float | None = None,
    ) -> None:
        for name, value in (("every_minutes", every_minutes), ("every_steps", every_steps)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}: expected a positive number, or None")
        self.path, self.state = path, state
        self._options = {"keep": keep, "single_file": single_file}
        self._every_seconds = math.inf if every_minutes is None else 60 * every_minutes
        self._every_steps = math.inf if every_steps is None else every_steps
        self._end_time = allocation.end_time() if end_time is None else end_time
        stop_requests.watch(signals)
        folder.check_is_writable(path)
        self.resumed_from = folder.latest(path)
        """The checkpoint that was loaded, a pathlib.Path, or None."""
        if self.resumed_from is not None:
            load(self.resumed_from, state)
            LOGGER.info("going on from %s", self.resumed_from)
        self._saving = None  # (future, when it began)
        self._save_seconds = 20.0
        self._steps = 0  # since the last save
        self._saved = self._stepped = time.monotonic()
        self._step_seconds = deque([0.0], maxlen=16)
        self._mark, self._marked = None, time.monotonic()
        self._has_warned = False

    def step(self) -> None:
        """Say that a step of the loop is complete, and the state consistent.

        Raises SystemExit(85) when the job was asked to stop, with the state saved; CheckpointError
        where a save has failed, WorkerError for an operator that has.
        """
        self._stay_near()
        now = time.monotonic()
        self._step_seconds.append(now - self._stepped)
        self._steps += 1
        self._look_at_save(now)
        if not self._has_warned and (lost := stop_requests.lost()):
            self._has_warned = True
            LOGGER.warning("another handler was set for %s since the Checkpointer was made: the "
                           "job will not be stopped by it", " and ".join(lost))
        reason = stop_requests.asked() or self._time_is_up()
        if reason is not None:
            self._leave(reason)
        if self._steps >= self._every_steps or now - self._saved >= self._every_seconds:
            self._saving = save_async(self.path, self.state, **self._options), now
            self._saved, self._steps = now, 0
        self._stepped = time.monotonic()

    def save(self) -> Path:
        """Save now, as at the end of the training; returns the checkpoint's folder."""
        path = save(self.path, self.state, **self._options)
        self._saved, self._steps = time.monotonic(), 0
        return path

    def _stay_near(self):
        # Not by each step, which may be short.
        if runtime.current() is None or time.monotonic() - self._marked < 0.25:
            return
        if self._mark is not None:
            self._mark.get()
        self._mark, self._marked = runtime.sync_future(), time.monotonic()

    def _look_at_save(self, now):
        if self._saving is not None and self._saving[0].is_ready():
            future, began = self._saving
            future.get()
            self._save_seconds, self._saving = now - began, None

    def _time_is_up(self):
        if self._end_time is None:
            return None
        needed = 2 * max(self._step_seconds) + 3 * self._save_seconds + 30
        left = self._end_time - time.time()
        return f"the job's time, of which {left:.0f} s are left" if left < needed else None

    def _leave(self, reason):
        LOGGER.warning("asked to stop by %s: saving", reason)
        path = self.save()
        LOGGER.warning("saved %s; leaving with code %d, to be started again", path, REQUEUE_CODE)
        if runtime.current() is not None:
            runtime.current().leaves_last = True
        raise SystemExit(REQUEUE_CODE)
