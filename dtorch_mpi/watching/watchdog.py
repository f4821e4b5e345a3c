"""How long something has stood still, as a watchdog counts it. Imports nothing: watchers use it."""


class Standstill:
    """Adds up for how long each of several things has shown the same mark.

    Only time in which somebody looks counts: where the one who looks was stopped with all the rest
    (a suspended job, say), nothing has stood still for it. Between looks `longest` seconds count at
    most.
    """

    def __init__(self, longest):
        self._longest = longest
        self._last = None
        self._seen = {}  # key -> (mark, seconds)

    def look(self, now, marks):
        """{key: seconds} for {key: mark}; None as a mark says that the thing is at rest."""
        passed = 0 if self._last is None else min(now - self._last, self._longest)
        self._last = now
        seen = {}
        for key, mark in marks.items():
            before, seconds = self._seen.get(key, (None, 0))
            seen[key] = (mark, seconds + passed if mark is not None and mark == before else 0)
        self._seen = seen
        return {key: seconds for key, (_, seconds) in seen.items()}

    def forget(self, key):
        """Count a thing anew."""
        self._seen.pop(key, None)


def interval(seconds):
    """How often to look, in seconds, where `seconds` of standing still are too many."""
    return min(5.0, max(0.05, seconds / 10))


def end_of_text(seconds):
    return f"the watchdog ended it (DTORCH_WATCHDOG_SECONDS={seconds})"
