"""Looking into a running job."""

from . import _core


def counters():
    """Counts since the start, by name.

    operators: issued. misses: calls whose outputs had to be worked out. new_sizes: calls of a
    size not seen before, found by a formula. uploads, upload_bytes: data sent from the client.
    reads: values, syncs and descriptions asked for. moves: redistributions. decisions: times that
    how to run on sharded tensors had to be worked out. records_*, bytes_*: of the stream.
    live_slots: tensors alive.
    """
    from .runtime import current
    from .sharding.hook import decision_count

    numbers = _core.counters()
    numbers["decisions"] = decision_count()
    running = current()
    if running is not None:
        numbers["batches"] = running.num_batches
        numbers["sends"] = running.num_sends
    return numbers


def fallbacks():
    """[(operator, placements, times)] of calls that gathered inputs for want of a better rule."""
    from .sharding.hook import fallback_counts

    return [(operator, placements, n) for (operator, placements), n in fallback_counts().items()]
