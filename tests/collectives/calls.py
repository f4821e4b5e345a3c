"""The collectives of a c10d Backend with plain arguments, and PyTorch's answer to each reduction.

Every call returns the Work without waiting.
"""

import functools

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

ReduceOp = dist.ReduceOp


def allreduce(backend, tensors, op=ReduceOp.SUM):
    options = c10d.AllreduceOptions()
    options.reduceOp = op
    return backend.allreduce(tensors, options)


def allreduce_coalesced(backend, tensors, op=ReduceOp.SUM):
    options = c10d.AllreduceCoalescedOptions()
    options.reduceOp = op
    return backend.allreduce_coalesced(tensors, options)


def broadcast(backend, tensor, root):
    options = c10d.BroadcastOptions()
    options.rootRank = root
    options.rootTensor = 0
    return backend.broadcast([tensor], options)


def reduce(backend, tensor, root, op=ReduceOp.SUM):
    options = c10d.ReduceOptions()
    options.rootRank = root
    options.rootTensor = 0
    options.reduceOp = op
    return backend.reduce([tensor], options)


def allgather(backend, outputs, tensor):
    return backend.allgather([outputs], [tensor], c10d.AllgatherOptions())


def allgather_into(backend, output, tensor):
    return backend._allgather_base(output, tensor, c10d.AllgatherOptions())


def gather(backend, outputs, tensor, root):
    options = c10d.GatherOptions()
    options.rootRank = root
    return backend.gather([] if outputs is None else [outputs], [tensor], options)


def scatter(backend, output, tensors, root):
    options = c10d.ScatterOptions()
    options.rootRank = root
    return backend.scatter([output], [] if tensors is None else [tensors], options)


def reduce_scatter(backend, output, tensors, op=ReduceOp.SUM):
    options = c10d.ReduceScatterOptions()
    options.reduceOp = op
    return backend.reduce_scatter([output], [tensors], options)


def reduce_scatter_from(backend, output, tensor, op=ReduceOp.SUM):
    options = c10d.ReduceScatterOptions()
    options.reduceOp = op
    return backend._reduce_scatter_base(output, tensor, options)


def alltoall(backend, outputs, tensors):
    return backend.alltoall(outputs, tensors, c10d.AllToAllOptions())


def alltoall_single(backend, output, tensor, output_splits=(), input_splits=()):
    return backend.alltoall_base(
        output, tensor, list(output_splits), list(input_splits), c10d.AllToAllOptions()
    )


def barrier(backend):
    return backend.barrier(c10d.BarrierOptions())


def as_process_group(backend, rank, size):
    """The backend inside a ProcessGroup, which has the calls that Backend hides from Python."""
    group = dist.ProcessGroup(dist.HashStore(), rank, size)
    kind = dist.ProcessGroup.BackendType.CUSTOM
    group._register_backend(torch.get_default_device(), kind, backend)
    group._set_default_backend(kind)
    return group


PAIRWISE = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def reduced(tensors, op="SUM"):
    """The tensors reduced by plain PyTorch, the 16-bit ones through float32."""
    dtype = tensors[0].dtype
    if dtype in (torch.float16, torch.bfloat16):
        return reduced([t.float() for t in tensors], op).to(dtype)
    result = functools.reduce(PAIRWISE[op], tensors)
    return result / len(tensors) if op == "AVG" else result


def make(rank, shape, dtype=torch.float32, seed=0):
    """Member `rank`'s input, on the default device: every member can work out everyone's."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    options = {"generator": generator, "device": "cpu"}
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        made = torch.randn(shape, dtype=wide, **options)
    else:
        made = torch.randint(0, 2 if dtype == torch.bool else 100, shape, **options)
    return made.to(device=torch.get_default_device(), dtype=dtype)


TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5}


def assert_close(got, expected):
    """As torch.testing's, exact where the arithmetic is."""
    limit = TOLERANCE.get(got.dtype, 1e-12 if got.is_floating_point() or got.is_complex() else 0)
    if got.dtype == torch.complex64:
        limit = 1e-5
    torch.testing.assert_close(got, expected, rtol=limit, atol=limit, equal_nan=True)


def assert_equal(got, expected):
    """Bit for bit, any dtype."""
    assert got.dtype == expected.dtype, f"{got.dtype} is not {expected.dtype}"
    assert got.shape == expected.shape, f"{tuple(got.shape)} is not {tuple(expected.shape)}"
    same = torch.equal(got.contiguous().flatten().view(torch.uint8),
                       expected.contiguous().flatten().view(torch.uint8))
    assert same, f"got {got}\nexpected {expected}"
