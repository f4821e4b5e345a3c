"""Futures: values on their way from the workers."""

import asyncio
import time

from .errors import WorkerError


class VoidFuture:
    """Becomes ready when every worker has executed what was issued before it."""

    def __init__(self, runtime, replies):
        self._runtime = runtime
        self._replies = replies
        self._error = None
        self._done = False
        self._value = None

    def is_ready(self):
        """Whether get() would return at once. Never waits."""
        return self._done or self._replies.poll()

    def wait(self, timeout_ms):
        """Wait at most `timeout_ms` milliseconds for the value and return it.

        Raises TimeoutError if it is not there by then; it can still be had later. Raises
        WorkerError if what it depends on failed.
        """
        until = time.monotonic() + timeout_ms / 1e3
        while not self.is_ready():
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"the value was not there after {timeout_ms} ms; it can still be had with "
                    "get() or wait()"
                )
            self._replies.wait(int(min(left, 0.1) * 1e6))
            self._runtime.check()
        return self.get()

    def get(self):
        """Wait for the value and return it; again, the same one. Raises WorkerError."""
        if not self._done:
            while not self._replies.wait(100_000):
                self._runtime.check()
            self._finish()
        if self._error is not None:
            raise self._error
        return self._value

    def __await__(self):
        # Gives the event loop back between looks; a thousand of these cost it little.
        delay = 0
        while not self.is_ready():
            yield from asyncio.sleep(delay).__await__()
            delay = min(0.002, delay + 0.0001)
            self._runtime.check()
        return self.get()

    def _finish(self):
        parts = self._replies.parts()
        self._done = True
        self._replies = None
        failures = [failure for _, failure in parts if failure is not None]
        new = self._runtime.not_yet_raised(failures, certain=bool(self._needs_value))
        if new:
            self._error = WorkerError(*new)
            return
        self._value = self._assemble([value for value, _ in parts])

    _needs_value = False

    def _assemble(self, values):
        return None


class TensorFuture(VoidFuture):
    """A tensor's full value on its way; `get()` gives a torch.Tensor on the CPU."""

    _needs_value = True

    def __init__(self, runtime, replies, assemble):
        super().__init__(runtime, replies)
        self._assemble = assemble
