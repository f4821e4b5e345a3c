"""The conformance run of the host-staged backend: `python -m ...staged_members OUTPUT SIZE`.

Threads that share one simulated GPU are the members, in a process of their own: once it is loaded,
a process has a GPU. OUTPUT gets {case: what failed, or None} as JSON; violations of the order of
streams are failures.
"""

import json
import sys
import traceback
from dataclasses import replace

import simulated_gpu
import torch

from dtorch_mpi._collectives import ThreadGroup, host_staged

from .calls import allgather, allreduce, assert_equal, barrier
from .conformance import Case, load
from .members import run_in_threads

LACKS = {
    "abort_is_local": "abort() frees every member of the group",
    "checks_received": "a receive of another size is seen as a mismatch, on both sides",
    "mpi_ranks": "is not a rank of MPI",
    "receive_overflow": "as checks_received",
}
# A simulated GPU has no sparse tensors.
LEFT_OUT = {"fault[sparse]"}
DEVICE = torch.device("cuda", 0)


def waits_for_its_event_only(backend, rank, size):
    barrier(backend).wait()  # all have been counted from zero
    tensor = torch.ones(1000)
    allreduce(backend, [tensor]).wait()
    counts = simulated_gpu.counts()
    assert counts["device_synchronizations"] == 0, counts
    assert not any(counts["stream_synchronizations"].values()), counts
    assert counts["blocking_copies"] == 0, counts
    barrier(backend).wait()
    assert_equal(tensor, torch.full((1000,), float(size)))


def results_on_other_streams(backend, rank, size):
    """Whoever waits has them on its own stream: the first, and those after it."""
    gathered = [torch.zeros(4) for _ in range(size)]
    tensor = torch.zeros(4).fill_(rank)
    work = allgather(backend, gathered, tensor)
    totals = []
    for _ in range(3):
        with simulated_gpu.stream(stream := simulated_gpu.new_stream()):
            work.wait()
            totals.append((stream, torch.stack(gathered).sum(0)))
    for stream, total in totals:  # only now, for looking at a value waits for its stream
        with simulated_gpu.stream(stream):
            assert_equal(total, torch.full((4,), size * (size - 1) / 2))


def future_on_another_stream(backend, rank, size):
    tensor = torch.ones(5)
    future = allreduce(backend, [tensor]).get_future()
    with simulated_gpu.stream(simulated_gpu.new_stream()):
        (result,) = future.wait()
        assert result.data_ptr() == tensor.data_ptr()
        assert_equal(result * 2, torch.full((5,), 2.0 * size))


def polled_then_dropped(backend, rank, size):
    """The memory of what is under way is not handed out again."""
    for step in range(20):
        tensor = torch.full((5000,), float(step))
        work = allreduce(backend, [tensor])
        work.is_completed()
        del work
        torch.full((5000,), -1.0)
        barrier(backend).wait()


OF_STREAMS = {body.__name__: Case(body.__name__, body, frozenset(), 1) for body in (
    waits_for_its_event_only, results_on_other_streams, future_on_another_stream,
    polled_then_dropped)}


def cases(size):
    """{name: case} of those that `size` members run."""
    return {name: case for name, case in (load() | OF_STREAMS).items()
            if not case.needs & LACKS.keys() and name not in LEFT_OUT and size >= case.min_size}


def on_gpu(case):
    """The case with tensors on the GPU, on a stream of each member's own."""

    def body(backend, rank, size):
        with torch.device(DEVICE), simulated_gpu.stream(simulated_gpu.new_stream()):
            case.body(backend, rank, size)

    return replace(case, body=body)


def run(case, size):
    """Violations are those of this case."""
    group = ThreadGroup(size)
    backends = [host_staged(group.backend(rank), DEVICE) for rank in range(size)]
    simulated_gpu.reset()
    run_in_threads(on_gpu(case), backends, group.abort)
    violations = simulated_gpu.violations()
    assert not violations, "\n".join(violations)


def main():
    output, size = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    simulated_gpu.load(devices=1)
    failures = {}
    for name, case in cases(size).items():
        try:
            run(case, size)
            failures[name] = None
        except BaseException:
            failures[name] = traceback.format_exc()
    with open(output, "w") as file:
        json.dump(failures, file)


if __name__ == "__main__":
    main()
