"""Reading what is asked for next, beside what goes on now."""

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

MOST = 64  # reads that are kept for nobody: an iteration was left


class ReadAhead:
    """Runs reads in a thread, one after the other, and keeps what they give until it is taken.

    For one thread's use.
    """

    def __init__(self):
        self._pool = None
        self._reads = OrderedDict()  # key -> Future

    def begin(self, key, read):
        """Have `read()` called in time for take(key)."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="dtorch-reader")
        try:
            self._reads[key] = self._pool.submit(read)
        except RuntimeError:
            return  # the interpreter is ending: what is still taken is read then
        while len(self._reads) > MOST:
            self._reads.popitem(last=False)[1].cancel()

    def take(self, key, read):
        """What the read of a key gives, or raises; calls `read()` where none was begun."""
        future = self._reads.pop(key, None)
        return read() if future is None else future.result()

    def stop(self):
        """Begin no other read. Waits for nothing."""
        self._reads.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
