"""Looking into a running job."""

import sys

from . import _core


def counters() -> dict[str, int]:
    """Counts since the start, by name.

    operators: issued. misses: calls whose outputs had to be worked out. new_sizes: calls of a
    size not seen before, found by a formula. uploads, upload_bytes: data sent from the client.
    reads: values, syncs and descriptions asked for. moves: redistributions. decisions: times that
    how to run on sharded tensors had to be worked out. records_*, bytes_*: of the stream.
    live_slots: tensors alive. batches, bytes_sent: to each worker. windows: stretches of the
    program. plans: of those that came again, told to the workers. replays: windows that a plan ran
    from beginning to end; replayed_records: of those and of parts. departures: from a plan before
    its end. fused_kernels: that all workers have; failed_kernels: that were given up, so that
    operators run one by one.
    """
    from .runtime import current

    numbers = _core.counters()
    # Only looked up: the rules take a second to load, and a job of one worker needs none.
    propagator = sys.modules.get("dtorch_mpi.sharding.propagator")
    numbers["decisions"] = propagator.num_decisions() if propagator else 0
    running = current()
    if running is not None:
        numbers["batches"] = running.num_batches
        numbers["bytes_sent"] = running.bytes_sent
        numbers |= running.trace_counters()
        numbers["sends"] = running.num_sends
        if running.main.planner is not None:
            made, failed = running.main.planner.kernels.counts()
            numbers |= {"fused_kernels": made, "failed_kernels": failed}
    return numbers


def graph(dot: bool = False) -> list[dict[str, str]]:
    """The windows of this thread's graph that were rewritten last, newest first: [{stage: text}].

    The stages are "program", as it was issued, and then each pass by its name, as that left it.
    dot: as Graphviz source in place of text.
    """
    from .runtime import current

    running = current()
    engine = running and running.engines.get(_core.current_graph())
    if not engine or engine.planner is None:
        return []
    return [
        {name: snapshot[dot] for name, snapshot in stages}
        for _, stages in reversed(engine.planner.history)
    ]


def fallbacks() -> list[tuple[str, tuple[str, ...], int]]:
    """[(operator, placements, times)] of calls that gathered inputs for want of a better rule.

    A program is warned of them too, by :class:`FallbackWarning` at its own lines.
    """
    from .sharding.fallback_log import fallback_counts

    return [(operator, placements, n) for (operator, placements), n in fallback_counts().items()]
