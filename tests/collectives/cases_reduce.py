"""Cases: the reductions."""

import torch

from .calls import (
    PAIRWISE,
    ReduceOp,
    allgather,
    allreduce,
    allreduce_coalesced,
    as_process_group,
    assert_close,
    assert_equal,
    make,
    reduce,
    reduce_scatter,
    reduce_scatter_from,
    reduced,
)
from .conformance import case

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)

REDUCIBLE = {
    "SUM": (*INTEGERS, *FLOATS, *COMPLEX),
    "AVG": (*FLOATS, *COMPLEX),
    "PRODUCT": (*INTEGERS, *FLOATS, *COMPLEX),
    "MIN": (*INTEGERS, *FLOATS),
    "MAX": (*INTEGERS, *FLOATS),
    "BAND": INTEGERS,
    "BOR": INTEGERS,
    "BXOR": INTEGERS,
}


def traits_of(op, dtype):
    needs = {f"reduce_{op}", f"reduce_{str(dtype).removeprefix('torch.')}"}
    if dtype in COMPLEX and op != "SUM":
        needs.add("complex_products")
    return needs


@case(*[(op, dtype) for op in PAIRWISE for dtype in REDUCIBLE[op]], needs=traits_of)
def allreduce_of(backend, rank, size, op, dtype):
    inputs = [make(r, (5, 3), dtype) for r in range(size)]
    tensor = inputs[rank].clone()
    allreduce(backend, [tensor], getattr(ReduceOp, op)).wait()
    assert_close(tensor, reduced(inputs, op))


@case(((0,),), ((),), ((1,),), ((7,),), ((0, 4),), ((3, 1, 5),), ((1_000_003,),))
def allreduce_shape(backend, rank, size, shape):
    inputs = [make(r, shape) for r in range(size)]
    tensor = inputs[rank].clone()
    allreduce(backend, [tensor]).wait()
    assert_close(tensor, reduced(inputs))


@case()
def allreduce_large(backend, rank, size):
    n = 2_000_001
    tensor = torch.arange(n, dtype=torch.int64) + rank
    allreduce(backend, [tensor]).wait()
    expected = size * torch.arange(n, dtype=torch.int64) + size * (size - 1) // 2
    assert_equal(tensor, expected)


@case(needs=("wraps_integers",))
def allreduce_wraps_integers(backend, rank, size):
    inputs = [torch.tensor([100, -100, 127, -128], dtype=torch.int8)] * size
    tensor = inputs[rank].clone()
    allreduce(backend, [tensor]).wait()
    assert_equal(tensor, reduced(inputs))


@case(("MIN", torch.float32), ("MAX", torch.float32), ("MIN", torch.bfloat16),
      ("MAX", torch.float64), needs=("nan_in_order",))
def allreduce_keeps_nan(backend, rank, size, op, dtype):
    inputs = [torch.arange(size + 1, dtype=dtype) - r for r in range(size)]
    for r in range(size):
        inputs[r][r] = float("nan")
    tensor = inputs[rank].clone()
    allreduce(backend, [tensor], getattr(ReduceOp, op)).wait()
    assert_close(tensor, reduced(inputs, op))


@case(needs=("strided",))
def allreduce_strided(backend, rank, size):
    inputs = [make(r, (6, 4)) for r in range(size)]
    transposed = inputs[rank].clone().t()
    base = torch.zeros(12, 8)
    sliced = base[::2, ::2]
    sliced.copy_(inputs[rank])
    allreduce(backend, [transposed]).wait()
    allreduce(backend, [sliced]).wait()
    assert_close(transposed.t(), reduced(inputs))
    assert_close(sliced, reduced(inputs))
    assert base[1::2].abs().sum() == 0 and base[:, 1::2].abs().sum() == 0


@case(needs=("strided", "reduce_complex64"))
def allreduce_conjugate_view(backend, rank, size):
    inputs = [make(r, (4,), torch.complex64) for r in range(size)]
    tensor = inputs[rank].clone().conj()
    allreduce(backend, [tensor]).wait()
    assert_close(tensor.resolve_conj(), reduced([t.conj().resolve_conj() for t in inputs]))


@case(needs=("coalesced",))
def allreduce_several(backend, rank, size):
    shapes = [(3,), (0,), (2, 5), ()]
    inputs = [[make(r, shape, seed=i) for i, shape in enumerate(shapes)] for r in range(size)]
    tensors = [t.clone() for t in inputs[rank]]
    allreduce_coalesced(backend, tensors).wait()
    for i, tensor in enumerate(tensors):
        assert_close(tensor, reduced([inputs[r][i] for r in range(size)]))


@case()
def allreduce_gives_all_the_same_bits(backend, rank, size):
    """Twice over, and on every member."""
    source = make(rank, (10_007,)) * 10.0 ** torch.arange(10_007).remainder(7)
    tensors = [source.clone(), source.clone()]
    for tensor in tensors:
        allreduce(backend, [tensor]).wait()
    assert_equal(tensors[0], tensors[1])
    everyone = [torch.empty_like(source) for _ in range(size)]
    allgather(backend, everyone, tensors[0]).wait()
    for other in everyone:
        assert_equal(other, tensors[0])


@case(("SUM",), ("AVG",), ("MAX",), needs=lambda op: {f"reduce_{op}"})
def reduce_to_each(backend, rank, size, op):
    for root in range(size):
        inputs = [make(r, (4, 3), seed=root) for r in range(size)]
        tensor = inputs[rank].clone()
        reduce(backend, tensor, root, getattr(ReduceOp, op)).wait()
        if rank == root:
            assert_close(tensor, reduced(inputs, op))


@case(needs=("reduce_keeps_inputs",))
def reduce_leaves_the_others_alone(backend, rank, size):
    for root in range(size):
        tensor = make(rank, (40,))
        reduce(backend, tensor, root).wait()
        if rank != root:
            assert_equal(tensor, make(rank, (40,)))


@case()
def reduce_shape_zero(backend, rank, size):
    tensor = torch.empty(0, 3)
    reduce(backend, tensor, size - 1).wait()
    assert tensor.shape == (0, 3)


def blocks_of(rank, size, rows, dtype=torch.float32, seed=0):
    return [make(rank, (rows(r), 3), dtype, seed=seed + r) for r in range(size)]


@case(("SUM", torch.float32), ("AVG", torch.float32), ("MIN", torch.int64),
      ("SUM", torch.bfloat16), ("PRODUCT", torch.float64), needs=traits_of)
def reduce_scatter_even(backend, rank, size, op, dtype):
    inputs = [blocks_of(r, size, lambda _: 4, dtype) for r in range(size)]
    output = torch.empty(4, 3, dtype=dtype)
    reduce_scatter(backend, output, inputs[rank], getattr(ReduceOp, op)).wait()
    assert_close(output, reduced([inputs[r][rank] for r in range(size)], op))


@case(needs=("uneven_reduce_scatter",))
def reduce_scatter_uneven(backend, rank, size):
    """Member 0 gets nothing, the others 3, 6, ... rows."""
    inputs = [blocks_of(r, size, lambda to: 3 * to) for r in range(size)]
    output = torch.empty(3 * rank, 3)
    reduce_scatter(backend, output, inputs[rank]).wait()
    assert_close(output, reduced([inputs[r][rank] for r in range(size)]))


@case(needs=("uneven_reduce_scatter", "strided"))
def reduce_scatter_uneven_strided(backend, rank, size):
    inputs = [blocks_of(r, size, lambda to: to + 1) for r in range(size)]
    mine = [t.t().contiguous().t() for t in inputs[rank]]
    output = torch.empty(3, rank + 1).t()
    reduce_scatter(backend, output, mine).wait()
    assert_close(output, reduced([inputs[r][rank] for r in range(size)]))


@case((0,), (1,), (257,))
def reduce_scatter_tensor(backend, rank, size, rows):
    inputs = [make(r, (size * rows, 2)) for r in range(size)]
    output = torch.empty(rows, 2)
    reduce_scatter_from(backend, output, inputs[rank].clone()).wait()
    assert_close(output, reduced(inputs)[rank * rows:(rank + 1) * rows])


@case(needs=("in_place",))
def reduce_scatter_in_place(backend, rank, size):
    inputs = [make(r, (size * 4,)) for r in range(size)]
    tensor = inputs[rank].clone()
    reduce_scatter_from(backend, tensor[rank * 4:(rank + 1) * 4], tensor).wait()
    assert_close(tensor[rank * 4:(rank + 1) * 4], reduced(inputs)[rank * 4:(rank + 1) * 4])


@case(needs=("tensor_coalesced",))
def reduce_scatter_tensors(backend, rank, size):
    group = as_process_group(backend, rank, size)
    inputs = [[make(r, (size * n,), seed=n) for n in (2, 5)] for r in range(size)]
    outputs = [torch.empty(2), torch.empty(5)]
    group.reduce_scatter_tensor_coalesced(outputs, inputs[rank]).wait()
    for i, n in enumerate((2, 5)):
        expected = reduced([inputs[r][i] for r in range(size)])
        assert_close(outputs[i], expected[rank * n:(rank + 1) * n])
