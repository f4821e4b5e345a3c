"""Cases: the collectives that only move data."""

import torch

from .calls import (
    allgather,
    allgather_into,
    alltoall,
    alltoall_single,
    as_process_group,
    assert_equal,
    broadcast,
    gather,
    make,
    scatter,
)
from .conformance import case

DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
          torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
          torch.complex128)


def moves(dtype):
    return {f"move_{str(dtype).removeprefix('torch.')}"}


@case(*[(dtype,) for dtype in DTYPES], needs=moves)
def broadcast_of(backend, rank, size, dtype):
    for root in range(size):
        tensor = make(rank, (4, 3), dtype, seed=root)
        broadcast(backend, tensor, root).wait()
        assert_equal(tensor, make(root, (4, 3), dtype, seed=root))


@case(((0,),), ((),), ((1,),), ((1_500_007,),))
def broadcast_shape(backend, rank, size, shape):
    tensor = make(rank, shape)
    broadcast(backend, tensor, size - 1).wait()
    assert_equal(tensor, make(size - 1, shape))


@case(needs=("strided",))
def broadcast_strided(backend, rank, size):
    """Each member's tensor may have strides of its own."""
    tensor = make(rank, (6, 4)) if rank % 2 else make(rank, (6, 4)).t().contiguous().t()
    broadcast(backend, tensor, 0).wait()
    assert_equal(tensor, make(0, (6, 4)))


@case(*[(dtype,) for dtype in DTYPES], needs=moves)
def allgather_of(backend, rank, size, dtype):
    outputs = [torch.empty(4, 3, dtype=dtype) for _ in range(size)]
    allgather(backend, outputs, make(rank, (4, 3), dtype)).wait()
    for r, output in enumerate(outputs):
        assert_equal(output, make(r, (4, 3), dtype))


@case(needs=("uneven_allgather",))
def allgather_uneven(backend, rank, size):
    """Member 0 has nothing, the others 2, 4, ... rows."""
    outputs = [torch.empty(2 * r, 3) for r in range(size)]
    allgather(backend, outputs, make(rank, (2 * rank, 3))).wait()
    for r, output in enumerate(outputs):
        assert_equal(output, make(r, (2 * r, 3)))


@case(needs=("uneven_allgather",))
def allgather_uneven_into_one(backend, rank, size):
    """Outputs that are parts of one tensor, as split() makes them."""
    rows = [3 * (r + 1) % 5 for r in range(size)]
    whole = torch.empty(sum(rows), 2)
    allgather(backend, list(whole.split(rows)), make(rank, (rows[rank], 2))).wait()
    assert_equal(whole, torch.cat([make(r, (rows[r], 2)) for r in range(size)]))


@case(needs=("strided", "uneven_allgather"))
def allgather_strided(backend, rank, size):
    outputs = [torch.empty(3, r + 1).t() for r in range(size)]
    allgather(backend, outputs, make(rank, (rank + 1, 6))[:, ::2]).wait()
    for r, output in enumerate(outputs):
        assert_equal(output, make(r, (r + 1, 6))[:, ::2])


@case((0,), (1,), (700_001,))
def allgather_tensor(backend, rank, size, rows):
    output = torch.empty(size * rows, 2)
    allgather_into(backend, output, make(rank, (rows, 2))).wait()
    assert_equal(output, torch.cat([make(r, (rows, 2)) for r in range(size)]))


@case(needs=("in_place",))
def allgather_in_place(backend, rank, size):
    output = torch.zeros(size, 5)
    output[rank] = make(rank, (5,))
    allgather_into(backend, output, output[rank]).wait()
    assert_equal(output, torch.stack([make(r, (5,)) for r in range(size)]))


@case(needs=("tensor_coalesced",))
def allgather_tensors(backend, rank, size):
    group = as_process_group(backend, rank, size)
    outputs = [torch.empty(size * n) for n in (2, 5)]
    inputs = [make(rank, (n,), seed=n) for n in (2, 5)]
    group.allgather_into_tensor_coalesced(outputs, inputs).wait()
    for output, n in zip(outputs, (2, 5), strict=True):
        assert_equal(output, torch.cat([make(r, (n,), seed=n) for r in range(size)]))


@case(((4, 3),), ((0,),), ((),), ((300_001,),))
def gather_to_each(backend, rank, size, shape):
    for root in range(size):
        outputs = [torch.empty(shape) for _ in range(size)] if rank == root else None
        gather(backend, outputs, make(rank, shape, seed=root), root).wait()
        for r, output in enumerate(outputs or []):
            assert_equal(output, make(r, shape, seed=root))


@case(((4, 3),), ((0,),), ((),), ((300_001,),))
def scatter_from_each(backend, rank, size, shape):
    for root in range(size):
        parts = [make(r, shape, seed=root) for r in range(size)] if rank == root else None
        output = torch.empty(shape)
        scatter(backend, output, parts, root).wait()
        assert_equal(output, make(rank, shape, seed=root))


@case(needs=("strided",))
def gather_and_scatter_strided(backend, rank, size):
    outputs = [torch.empty(3, 4).t() for _ in range(size)] if rank == 0 else None
    gather(backend, outputs, make(rank, (3, 4)).t(), 0).wait()
    back = torch.empty(3, 4).t()
    scatter(backend, back, outputs, 0).wait()
    assert_equal(back, make(rank, (3, 4)).t())


@case(*[(dtype,) for dtype in DTYPES], needs=moves)
def alltoall_even(backend, rank, size, dtype):
    output = torch.empty(size * 2, 3, dtype=dtype)
    alltoall_single(backend, output, make(rank, (size * 2, 3), dtype)).wait()
    expected = [make(r, (size * 2, 3), dtype)[rank * 2:rank * 2 + 2] for r in range(size)]
    assert_equal(output, torch.cat(expected))


@case((1,), (90_001,), needs=("uneven_alltoall",))
def alltoall_splits(backend, rank, size, unit):
    """Member a sends (a + b) % 3 units of rows to member b: some nothing at all."""
    def rows(a, b):
        return (a + b) % 3 * unit

    def sent(a):
        return make(a, (sum(rows(a, b) for b in range(size)), 2))

    to = [rows(rank, b) for b in range(size)]
    came = [rows(a, rank) for a in range(size)]
    output = torch.empty(sum(came), 2)
    alltoall_single(backend, output, sent(rank), came, to).wait()
    expected = [sent(a).split([rows(a, b) for b in range(size)])[rank] for a in range(size)]
    assert_equal(output, torch.cat(expected))


@case(needs=("alltoall_lists",))
def alltoall_of_lists(backend, rank, size):
    def part(a, b):
        return make(a, (a + 2 * b, 3), seed=b)

    outputs = [torch.empty(a + 2 * rank, 3) for a in range(size)]
    outputs[0] = torch.empty(3, 2 * rank).t()
    alltoall(backend, outputs, [part(rank, b) for b in range(size)]).wait()
    for a, output in enumerate(outputs):
        assert_equal(output, part(a, rank))


@case(needs=("in_place",))
def alltoall_in_place(backend, rank, size):
    tensor = make(rank, (size, 4))
    alltoall_single(backend, tensor, tensor).wait()
    assert_equal(tensor, torch.stack([make(r, (size, 4))[rank] for r in range(size)]))
