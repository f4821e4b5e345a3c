"""The workers' part of `dtorch_mpi.profile` and `dtorch_mpi.stats`."""

import time

import numpy
import torch

from .registry import call, kernel

EVENT_BYTES = 88  # src/profiling/timeline.h


def own_row(context, values):
    """This worker's row of a [workers, len(values)] tensor."""
    ((_, rows), _), = context.local_slices
    return torch.tensor([values] * rows, dtype=torch.int64)


@kernel("dtorch.timeline.clock")
def _clock(context):
    return own_row(context, [time.monotonic_ns()])  # steady_clock's clock


@kernel("dtorch.timeline.begin")
def _begin(context, capacity):
    from .. import _worker

    _worker.begin_timeline(capacity)
    return own_row(context, [_worker.live_memory()[2]])


@kernel("dtorch.timeline.stop")
def _stop(context):
    from .. import _worker

    return own_row(context, [*_worker.stop_timeline(), _worker.live_memory()[2]])


@kernel("dtorch.timeline.events")
def _events(context, first, count):
    from .. import _worker

    ((_, rows), (_, size)), = context.local_slices
    events = numpy.zeros((rows, size), dtype=numpy.uint8)
    found = numpy.frombuffer(_worker.timeline_events(first, count), dtype=numpy.uint8)
    events[:, :found.size] = found
    return torch.from_numpy(events)


@kernel("dtorch.timeline.clear")
def _clear(context):
    from .. import _worker

    _worker.clear_timeline()
    return own_row(context, [0])


@kernel("dtorch.stage_times")
def _stage_times(context):
    from .. import _worker

    return own_row(context, [round(seconds * 1e9) for seconds in _worker.stage_times()])


def on_all_workers(name, args, num_workers, width, dtype=torch.int64):
    """Run one of these kernels; returns the dtorch tensor with a row for each worker."""
    from torch.distributed.tensor import Shard

    from ..mesh import init_device_mesh

    mesh = init_device_mesh((num_workers,))
    return call(f"dtorch.{name}", args, sizes=[num_workers, width], dtype=dtype, mesh=mesh,
                placements=[Shard(0)])
