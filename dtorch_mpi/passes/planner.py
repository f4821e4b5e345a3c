"""The thread that rewrites windows while the program goes on."""

import threading
import time
import traceback
import warnings
from collections import deque

from . import chosen
from .records import decode, encode

KEPT = 16  # windows that dt.debug.graph() can show


class Planner:
    """Runs passes over the windows that come again.

    It takes the GIL for moments only: the client wants it most of the time.
    """

    def __init__(self, controller, passes):
        self._controller = controller
        self.passes = passes
        self.history = deque(maxlen=KEPT)  # (plan, [(pass, text, dot)])
        self._stopping = threading.Event()
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dtorch-planner", daemon=True)
        self._thread.start()

    def stop(self, seconds=None):
        """End the thread; returns whether it has ended within the time: a pass may take its own."""
        self._stopping.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def wait(self, seconds=10.0):
        """Wait until every window that has come so far is rewritten; for tests and benchmarks."""
        until = time.monotonic() + seconds
        self._idle.clear()
        while not self._idle.wait(0.01):
            if time.monotonic() > until:
                raise TimeoutError(f"the planner was not done within {seconds} s")

    def _run(self):
        while not self._stopping.is_set():
            found = self._controller.new_plan(20_000)
            if found is None:
                self._idle.set()
                continue
            try:
                self._rewrite(*found)
            except Exception:  # the window runs as the program wrote it
                text = "a window could not be rewritten, and runs as it is:\n"
                warnings.warn(text + traceback.format_exc(), RuntimeWarning, stacklevel=1)

    def _rewrite(self, number, records):
        passes = chosen(self.passes)
        if not passes:
            return
        graph = decode(number, records)
        stages = [("program", graph.snapshot())]
        for name, function in passes.items():
            time.sleep(0.0005)
            if self._stopping.is_set():
                return
            function(graph)
            stages.append((name, graph.snapshot()))
        self.history.append((number, stages))
        if (rewritten := encode(graph)) is not None:
            self._controller.rewrite(number, *rewritten)
