"""Cases: faults of the caller, of another member, and time limits."""

import re
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from .calls import (
    ReduceOp,
    allgather,
    allgather_into,
    allreduce,
    alltoall_single,
    assert_equal,
    barrier,
    broadcast,
    gather,
    reduce_scatter,
    scatter,
)
from .conformance import case


def raises(kind, pattern, call):
    """The call must raise exactly this kind with such a text, which is returned."""
    try:
        call()
    except Exception as error:
        assert type(error) is kind, f"{type(error).__name__}, not {kind.__name__}: {error}"
        assert re.search(pattern, str(error)), f"{pattern!r} is not in: {error}"
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


FAULTS = {
    "two_tensors": (ValueError, "got 2 tensors as tensors, expected 1",
                    lambda b, r, n: allreduce(b, [torch.ones(1), torch.ones(1)])),
    "sparse": (ValueError, "expected a dense",
               lambda b, r, n: allreduce(b, [torch.ones(2, 2).to_sparse()])),
    "device": (ValueError, "is on meta, expected (a CPU tensor|one on)",
               lambda b, r, n: allreduce(b, [torch.ones(2, device="meta")])),
    "bits_of_floats": (TypeError, "cannot reduce Float with BAND",
                       lambda b, r, n: allreduce(b, [torch.ones(2)], ReduceOp.BAND)),
    "order_of_complex": (TypeError, "cannot reduce ComplexFloat with MAX",
                         lambda b, r, n: allreduce(
                             b, [torch.ones(2, dtype=torch.complex64)], ReduceOp.MAX)),
    "average_of_integers": (TypeError, "cannot reduce Int with AVG",
                            lambda b, r, n: allreduce(
                                b, [torch.ones(2, dtype=torch.int32)], ReduceOp.AVG)),
    "root": (ValueError, "root rank is 99, expected a rank from 0 to",
             lambda b, r, n: broadcast(b, torch.ones(2), 99)),
    "number_of_outputs": (ValueError, "one for each member",
                          lambda b, r, n: allgather(
                              b, [torch.ones(2)] * (n + 1), torch.ones(2))),
    "dtype_of_outputs": (TypeError, "output is Int but input is Float",
                         lambda b, r, n: allgather(
                             b, [torch.ones(2, dtype=torch.int32)] * n, torch.ones(2))),
    "mixed_dtypes": (TypeError, "mixes Float and Double",
                     lambda b, r, n: b.allreduce_coalesced(
                         [torch.ones(1), torch.ones(1).double()],
                         c10d.AllreduceCoalescedOptions())),
    "own_shape": (ValueError, r"input has shape \[2\], expected \[3\]",
                  lambda b, r, n: allgather(b, [torch.ones(3)] * n, torch.ones(2))),
    "whole": (ValueError, "times the 2 elements of input",
              lambda b, r, n: allgather_into(b, torch.ones(2 * n + 1), torch.ones(2))),
    "reduce_scatter_shape": (ValueError, "this member's input",
                             lambda b, r, n: reduce_scatter(
                                 b, torch.ones(4), [torch.ones(2)] * n)),
    "gather_shape": (ValueError, "an output has shape",
                     lambda b, r, n: gather(b, [torch.ones(3)] * n, torch.ones(2), r)),
    "scatter_lists": (ValueError, "expected 1: a member has one device",
                      lambda b, r, n: scatter(b, torch.ones(2), None, r)),
    "splits": (ValueError, "split sizes for input sum to",
               lambda b, r, n: alltoall_single(
                   b, torch.ones(n), torch.ones(n), [1] * n, [2] * n)),
    "number_of_splits": (ValueError, "one for each member",
                         lambda b, r, n: alltoall_single(
                             b, torch.ones(n), torch.ones(n), [1] * n, [1] * (n + 1))),
    "tag": (ValueError, "tag is -1", lambda b, r, n: b.send([torch.ones(1)], 0, -1)),
    "destination": (ValueError, "destination is -3",
                    lambda b, r, n: b.send([torch.ones(1)], -3, 0)),
}


@case(*[(name,) for name in FAULTS], needs=("our_texts",))
def fault(backend, rank, size, name):
    """Raises at the call, names the member, and leaves the backend usable."""
    kind, pattern, call = FAULTS[name]
    text = raises(kind, pattern, lambda: call(backend, rank, size))
    assert f"rank {rank} of {size}" in text, text
    tensor = torch.ones(2)
    allreduce(backend, [tensor]).wait()
    assert_equal(tensor, torch.full((2,), float(size)))


MISMATCHES = {
    "shape": lambda b, r: allreduce(b, [torch.ones(2 + (r == 1))]),
    "dtype": lambda b, r: allreduce(
        b, [torch.ones(2, dtype=torch.float64 if r == 1 else torch.float32)]),
    "operator": lambda b, r: allreduce(
        b, [torch.ones(2)], ReduceOp.MAX if r == 1 else ReduceOp.SUM),
    "kind": lambda b, r: barrier(b) if r == 1 else allreduce(b, [torch.ones(2)]),
    "root": lambda b, r: broadcast(b, torch.ones(2), int(r == 1)),
}


@case(*[(name,) for name in MISMATCHES], needs=("sees_mismatch",), min_size=2)
def mismatch(backend, rank, size, name):
    """Every member raises, and the backend stays usable."""
    text = raises(dist.DistBackendError, "do not match",
                  lambda: MISMATCHES[name](backend, rank).wait())
    assert f"rank {rank} of {size}" in text, text
    tensor = torch.ones(2)
    allreduce(backend, [tensor]).wait()
    assert_equal(tensor, torch.full((2,), float(size)))


@case(needs=("checks_received",), min_size=2)
def receive_of_other_size(backend, rank, size):
    if rank == 0:
        backend.send([torch.ones(3)], 1, 0).wait()
    elif rank == 1:
        raises(dist.DistBackendError, "received 12 bytes from rank 0, expected 20",
               backend.recv([torch.empty(5)], 0, 0).wait)


@case(needs=("receive_overflow",), min_size=2)
def receive_into_too_little(backend, rank, size):
    """MPI's own complaint becomes an error that names the call and the member."""
    if rank == 0:
        backend.send([torch.ones(30)], 1, 0).wait()
    elif rank == 1:
        text = raises(dist.DistBackendError, "MPI_Test failed: .*(?i:trunc)",
                      backend.recv([torch.empty(5)], 0, 0).wait)
        assert f"recv ({backend.name()}, rank 1 of {size})" in text, text


@case(needs=("wait_again",), min_size=2)
def wait_with_a_limit(backend, rank, size):
    barrier(backend).wait()
    tensor = torch.ones(4)
    if rank == 0:
        work = allreduce(backend, [tensor])
        start = time.monotonic()
        text = raises(dist.DistBackendError, "timed out after 100 ms",
                      lambda: work.wait(timedelta(milliseconds=100)))
        assert 0.09 < time.monotonic() - start < 0.4, "the limit was not kept"
        assert f"rank 0 of {size}" in text, text
    else:
        time.sleep(0.6)
        work = allreduce(backend, [tensor])
    work.wait()
    assert_equal(tensor, torch.full((4,), float(size)))


@case(needs=("wait_again",), min_size=2)
def limit_of_the_backend(backend, rank, size):
    barrier(backend).wait()
    if rank == 0:
        backend.set_timeout(timedelta(milliseconds=100))
        work = barrier(backend)
        raises(dist.DistBackendError, "timed out after 100 ms", work.wait)
        work.wait(timedelta(seconds=20))
    else:
        time.sleep(0.5)
        barrier(backend).wait()


@case(needs=("abort_reaches_all",), min_size=2)
def abort_frees_everyone(backend, rank, size):
    if rank == 0:
        time.sleep(0.1)
        backend.abort()
    else:
        work = allreduce(backend, [torch.ones(4)])
        future = work.get_future()
        raises(dist.DistBackendError, "aborted: rank 0", work.wait)
        assert future.done()
    raises(dist.DistBackendError, "aborted: rank 0", lambda: allreduce(backend, [torch.ones(4)]))


@case(needs=("abort_is_local",), min_size=2)
def abort_frees_this_member(backend, rank, size):
    """The others have not joined yet: this member's wait ends all the same."""
    if rank == 0:
        work = allreduce(backend, [torch.ones(4)])
        backend.abort()
        raises(dist.DistBackendError, "aborted", work.wait)
        raises(dist.DistBackendError, "aborted", lambda: barrier(backend))
    else:
        time.sleep(0.2)
        allreduce(backend, [torch.ones(4)])
