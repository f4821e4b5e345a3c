"""Futures: values on their way from the workers."""

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import torch


class VoidFuture:
    """Becomes ready when every worker has executed what was issued before it.

    Any thread may use it, and several at once.
    """

    _replies = None  # until it has asked, which may raise

    def __init__(self, runtime: Any, ask: Callable[[], Any]) -> None:
        self._runtime = runtime
        self._ask = ask  # gives the replies to wait for
        self._replies = ask()
        self._lock = threading.Lock()
        self._error = None
        self._done = False
        self._value = None

    def is_ready(self) -> bool:
        """Whether get() would return at once. Never waits."""
        replies = self._replies
        return replies is None or replies.poll()

    def wait(self, timeout_ms: float) -> None:
        """Wait at most `timeout_ms` milliseconds for the value and return it.

        Raises TimeoutError if it is not there by then; it can still be had later. Raises
        WorkerError if what it depends on failed, and TypeError for a time that is no number.
        """
        if not isinstance(timeout_ms, (int, float)):
            raise TypeError(
                f"wait() got {timeout_ms!r}: expected milliseconds; get() waits as long as it takes"
            )
        until = time.monotonic() + timeout_ms / 1e3
        while (replies := self._replies) is not None:
            left = until - time.monotonic()
            if replies.poll() or (left > 0 and replies.wait(int(min(left, 0.1) * 1e6))):
                self._finish(replies)
            elif left <= 0:
                raise TimeoutError(
                    f"the value was not there after {timeout_ms} ms; it can still be had with "
                    "get() or wait()"
                )
            else:
                self._runtime.check()
        return self._result()

    def get(self) -> None:
        """Wait for the value and return it; again, the same one. Raises WorkerError."""
        while (replies := self._replies) is not None:
            if replies.wait(100_000):
                self._finish(replies)
            else:
                self._runtime.check()
        return self._result()

    def value_in_background(self) -> Any:
        """The value of a future that is ready; None if a failure came with it, which the program
        is told at its next sync. For the library's own threads.
        """
        replies, self._replies = self._replies, None
        parts = replies.parts()
        failures = [failure for _, failure in parts if failure is not None]
        self._runtime.put_back(failures)
        return self._assemble([value for value, _ in parts]) if not failures else None

    def __await__(self) -> Generator[Any, None, None]:
        while not self.is_ready():
            yield from _Poller.of(asyncio.get_running_loop()).ready(self).__await__()
        return self.get()

    def __reduce__(self):
        raise TypeError(
            f"a {type(self).__name__} belongs to the program that waits for it, and can't be "
            "copied or pickled: copy the value, which get() returns"
        )

    def __del__(self):
        # A failure that came with the answer must still be told.
        if self._replies is not None:
            self._runtime.left_unread(self._replies)

    def _result(self):
        if self._error is not None:
            # Each raise would lengthen the traceback that the error carries.
            raise self._error.with_traceback(None)
        return self._value

    def _finish(self, replies):
        with self._lock:
            if self._replies is not replies:
                return  # another thread did it
            parts = replies.parts()
            failures = [failure for _, failure in parts if failure is not None]
            new = self._runtime.not_yet_raised(failures, certain=self._needs_value)
            if new is None and failures:
                # Told before; a sync must also tell what came after it.
                self._replies = self._ask()
                return
            if new is not None:
                self._error = self._runtime.error(new)
            else:
                self._value = self._assemble([value for value, _ in parts])
            self._replies = None

    _needs_value = False

    def _assemble(self, values):
        return None


class TensorFuture(VoidFuture):
    """A tensor's full value on its way; `get()` gives a torch.Tensor on the CPU."""

    _needs_value = True

    if TYPE_CHECKING:
        def wait(self, timeout_ms: float) -> torch.Tensor: ...
        def get(self) -> torch.Tensor: ...
        def __await__(self) -> Generator[Any, None, torch.Tensor]: ...

    def __init__(self, runtime: Any, replies: Any, assemble: Callable[[list], Any]) -> None:
        super().__init__(runtime, lambda: replies)
        self._assemble = assemble


class _Poller:
    """Looks after all futures that are awaited in one event loop, with one timer."""

    _of_loop = weakref.WeakKeyDictionary()

    @classmethod
    def of(cls, loop):
        poller = cls._of_loop.get(loop)
        if poller is None:
            poller = cls._of_loop[loop] = cls(loop)
        return poller

    def __init__(self, loop):
        self._loop = weakref.ref(loop)
        self._waiting = []
        self._delay = 0
        self._timer = None

    def ready(self, future):
        loop = self._loop()
        waiter = loop.create_future()
        self._waiting.append((future, waiter))
        self._delay = 0
        if self._timer is None:
            self._timer = loop.call_soon(self._look)
        return waiter

    def _look(self):
        still = []
        for future, waiter in self._waiting:
            if waiter.done():  # cancelled
                continue
            try:
                future._runtime.check()
                if future.is_ready():
                    waiter.set_result(None)
                else:
                    still.append((future, waiter))
            except Exception as error:
                waiter.set_exception(error)
        self._waiting = still
        self._timer = None
        if still:
            self._delay = min(0.002, self._delay + 0.0001)
            self._timer = self._loop().call_later(self._delay, self._look)
