"""Where a job's work and time go, in numbers."""

from typing import Any

import torch

from . import _core
from .engine import issuing_to


def stats() -> dict[str, Any]:
    """Numbers since the workers were started, as a dict.

    records: issued, by the process, whatever for (operators, frees, reads, definitions). operators:
    of these, operator calls. misses: calls whose outputs had to be worked out, because no call like
    them had come before. windows: stretches of the program that the controller has planned.
    replays: of these, those that workers ran by a plan they held, from beginning to end.
    replayed_records: of such plans, or of parts of them. departures: times that the program left a
    plan before its end. plans: told to the workers so far. batches: messages of records, each to
    all workers. bytes_sent: of those, to each worker; uploads are not counted. upload_bytes: of
    data from the client.

    controller_busy: seconds for taking records, planning and sending, by whichever thread did it.
    workers: for each, "operators" executed; "busy", seconds of executing batches, waits within
    collectives included; "idle", seconds of waiting for batches; "peak_memory", in bytes,
    the most that its tensors took of its GPU, or on a CPU the largest resident memory of its
    process, as `torch.dtorch.max_memory_allocated()` takes it. Worker threads of one process have
    the same, on GPUs those that share one. With several graphs, busy and idle are sums over their
    threads.

    How long the client takes isn't measured: to read a clock for each operator would cost it more
    than is worth it. :func:`dtorch_mpi.profile` does.

    Waits for the workers, and starts none: `workers` is empty while there are none. Raises
    WorkerError for a failed operator whose result nobody has read.
    """
    from .kernels.timeline import on_all_workers
    from .runtime import current

    counters = _core.counters()
    numbers = {
        "records": counters["records_issued"], "operators": counters["operators"],
        "misses": counters["misses"], "windows": 0, "replays": 0, "replayed_records": 0,
        "departures": 0, "plans": 0, "batches": 0, "bytes_sent": 0,
        "upload_bytes": counters["upload_bytes"], "controller_busy": 0.0, "workers": [],
    }  # fmt: skip
    running = current()
    if running is None:
        return numbers
    numbers |= running.trace_counters()
    numbers["batches"] = running.num_batches
    numbers["bytes_sent"] = running.bytes_sent
    numbers["controller_busy"] = sum(c.busy_seconds for c in running.controllers)
    times = torch.zeros(running.num_workers, 2, dtype=torch.int64)
    with running.graphs_lock:
        for graph in running.engines:
            with issuing_to(graph):
                times += on_all_workers("stage_times", [], running.num_workers, 2).to_torch()
    numbers["workers"] = [
        {"operators": memory["operators"], "busy": busy * 1e-9, "idle": idle * 1e-9,
         "peak_memory": memory["peak_allocated"]}
        for (busy, idle), memory in zip(times.tolist(), running.worker_memory(), strict=True)
    ]  # fmt: skip
    return numbers
