"""The thread that rewrites windows while the program goes on."""

import threading
import time
import traceback
import warnings
from collections import deque

from . import assignment, chosen
from .decoding import decode
from .encoding import encode

MOST_WAITING = 64  # windows that kernels are being made for
KEPT = 16  # windows that dt.debug.graph() can show


class Planner:
    """Runs passes over the windows that come again.

    It takes the GIL for moments only: the client wants it most of the time.
    """

    def __init__(self, controller, passes, streams, kernels):
        self._controller = controller
        self.passes = passes
        self.streams = streams  # the policy by which operators get a stream
        self.kernels = kernels  # fused ones, which windows wait for
        self._waiting = deque(maxlen=MOST_WAITING)  # (plan, its records, kernels)
        self.history = deque(maxlen=KEPT)  # (plan, [(pass, text, dot)])
        self._stopping = threading.Event()
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dtorch-planner", daemon=True)
        self._thread.start()

    def halt(self):
        """Have the thread end soon: it may be about to issue something, when no one may."""
        self._stopping.set()

    def stop(self, seconds=None):
        """End the thread; returns whether it has ended within the time: a pass may take its own."""
        self._stopping.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def wait(self, seconds=10.0, kernels=False):
        """Wait until every window that has come so far is rewritten; for tests and benchmarks.

        kernels: with those that are still compiled, as far as they can be had.
        """
        until = time.monotonic() + seconds
        # Twice: what it looked at before the first time may have been before the last window.
        for _ in range(2):
            self._idle.clear()
            while kernels and self._waiting or not self._idle.wait(0.01):
                if time.monotonic() > until:
                    raise TimeoutError(f"the planner was not done within {seconds} s")
                time.sleep(0.01)

    def _run(self):
        while not self._stopping.is_set():
            found = self._controller.new_plan(20_000)
            try:
                if found is not None:
                    self._rewrite(*found)
                elif not self._rewrite_waiting():
                    self._idle.set()
            except Exception:  # the window runs as the program wrote it
                if self._stopping.is_set():
                    return
                text = "a window could not be rewritten, and runs as it is:\n"
                warnings.warn(text + traceback.format_exc(), RuntimeWarning, stacklevel=1)

    def _rewrite_waiting(self):
        """Rewrite a window again that kernels have been made for; False if there is none."""
        if not self._waiting:
            return False
        self.kernels.look()
        for waiting in self._waiting:
            number, records, texts = waiting
            if self.kernels.are_settled(texts):
                self._idle.clear()
                self._waiting.remove(waiting)
                if any(map(self.kernels.are_there, texts)):
                    self._rewrite(number, records)
                return True
        return False

    def _rewrite(self, number, records):
        passes = chosen(self.passes)
        assign = assignment.POLICIES[self.streams]
        if not passes and assign is None:
            return
        graph = decode(number, records)
        graph.kernels = self.kernels
        stages = [("program", graph.snapshot())]
        for name, function in passes.items():
            time.sleep(0.0005)
            if self._stopping.is_set():
                return
            function(graph)
            stages.append((name, graph.snapshot()))
        sections = assign(graph) if assign is not None else []
        if sections:
            stages.append(("streams", (assignment.text(sections), graph.dot())))
        self.history.append((number, stages))
        if (rewritten := encode(graph, sections)) is not None:
            self._controller.rewrite(number, *rewritten)
        if texts := self.kernels.take_asked():
            self._waiting.append((number, records, texts))
