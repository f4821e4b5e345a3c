"""Every transition between placements, against plain slicing of the full tensor."""

import itertools

import pytest
import torch
from gloo_mesh import GlooMesh
from torch.distributed.tensor import Partial, Replicate, Shard

from dtorch_mpi import _sharding
from dtorch_mpi.sharding.placements import pack, unpack

MESHES = [(2,), (3,), (4,), (2, 2), (2, 3)]
SIZES = [(8, 4), (5, 3), (1, 7), (0, 3), (12, 1)]
AXIS_PLACEMENTS = [Replicate(), Shard(0), Shard(1), Partial("sum"), Partial("max")]


@pytest.fixture(scope="module", params=MESHES, ids=str)
def mesh(request):
    made = GlooMesh(request.param)
    yield made
    made.close()


def layouts(num_axes):
    """All layouts, without those that mix reductions: their value depends on the order."""
    for placements in itertools.product(AXIS_PLACEMENTS, repeat=num_axes):
        if len({p.reduce_op for p in placements if isinstance(p, Partial)}) < 2:
            yield placements


def chunked(full, shape, placements, coordinate):
    """The oracle: torch.chunk, axis by axis. None for a Partial layout, which has no one answer."""
    local = full
    for length, placement, index in zip(shape, placements, coordinate, strict=True):
        if isinstance(placement, Partial):
            return None
        if isinstance(placement, Shard):
            pieces = list(torch.chunk(local, length, placement.dim))
            empty = local.narrow(placement.dim, 0, 0)
            pieces += [empty] * (length - len(pieces))
            local = pieces[index]
    return local


def values(sizes, dtype):
    count = torch.Size(sizes).numel()
    made = torch.arange(1, count + 1).reshape(sizes)
    return (made % 2 == 0) if dtype == torch.bool else made.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_all_transitions(mesh, sizes, dtype):
    full = values(sizes, dtype)
    cases = list(itertools.product(layouts(len(mesh.shape)), repeat=2))

    def worker(coordinate, groups):
        results = []
        for before, after in cases:
            local = _sharding.local_slice(full, mesh.shape, pack(before), coordinate)
            kept = local.clone()
            result = _sharding.redistribute(
                local, sizes, mesh.shape, coordinate, groups, pack(before), pack(after)
            )
            assert torch.equal(local, kept), f"{before} -> {after} wrote to its input"
            assert result.is_contiguous()
            same = before == after
            assert (result is local) == same
            assert same or result.numel() == 0 or result.data_ptr() != local.data_ptr()
            results.append(result)
        return results

    by_worker = mesh.run(worker, mesh.coordinates, mesh.groups)
    for case, (before, after) in enumerate(cases):
        shards = [results[case] for results in by_worker]
        for coordinate, shard in zip(mesh.coordinates, shards, strict=True):
            expected = chunked(full, mesh.shape, after, coordinate)
            if expected is not None:
                assert torch.equal(shard, expected), f"{before} -> {after} at {coordinate}"
        whole = _sharding.assemble(shards, sizes, mesh.shape, pack(after))
        assert torch.equal(whole, full), f"{before} -> {after}"


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64, torch.bfloat16], ids=str)
def test_dtypes_that_backends_lack(mesh, dtype):
    sizes = (5, 3)
    full = values(sizes, dtype)
    axes = len(mesh.shape)
    sharded, moved = [Shard(0)] * axes, [Shard(1)] * axes
    cases = [(sharded, moved), (moved, [Replicate()] * axes)]
    cases += [([Partial("sum")] * axes, after) for after in (sharded, [Replicate()] * axes)]

    def worker(coordinate, groups):
        return [
            _sharding.redistribute(
                _sharding.local_slice(full, mesh.shape, pack(before), coordinate),
                sizes, mesh.shape, coordinate, groups, pack(before), pack(after),
            )
            for before, after in cases
        ]

    by_worker = mesh.run(worker, mesh.coordinates, mesh.groups)
    for case, (_, after) in enumerate(cases):
        for coordinate, results in zip(mesh.coordinates, by_worker, strict=True):
            assert torch.equal(results[case], chunked(full, mesh.shape, after, coordinate))


@pytest.mark.parametrize(
    "op,expected", [("sum", 6.0), ("avg", 2.0), ("product", 6.0), ("min", 1.0), ("max", 3.0)]
)
@pytest.mark.parametrize("after", [Replicate(), Shard(0)], ids=str)
def test_reductions(op, expected, after):
    mesh = GlooMesh((3,))
    shares = [torch.full((4, 2), float(value)) for value in (1, 2, 3)]

    def worker(coordinate, groups, share):
        return _sharding.redistribute(
            share, (4, 2), (3,), coordinate, groups, pack([Partial(op)]), pack([after])
        )

    results = mesh.run(worker, mesh.coordinates, mesh.groups, shares)
    mesh.close()
    assert [len(result) for result in results] == ([4, 4, 4] if after == Replicate() else [2, 2, 0])
    for result in results:
        assert torch.equal(result, torch.full_like(result, expected))


def test_sums_on_one_axis_of_two():
    mesh = GlooMesh((2, 2))
    full = values((6, 5), torch.float64)

    def worker(coordinate, groups):
        rows = torch.chunk(full, 2, 0)[coordinate[0]]
        share = rows * (0.25 if coordinate[1] else 0.75)
        return _sharding.redistribute(
            share, (6, 5), (2, 2), coordinate, groups,
            pack([Shard(0), Partial("sum")]), pack([Shard(0), Shard(0)]),
        )

    results = mesh.run(worker, mesh.coordinates, mesh.groups)
    mesh.close()
    for coordinate, result in zip(mesh.coordinates, results, strict=True):
        assert torch.equal(result, chunked(full, (2, 2), (Shard(0), Shard(0)), coordinate))


def plan(before, after):
    steps = _sharding.plan_redistribute(pack(before), pack(after))
    return [(axis, *unpack([start]), *unpack([end])) for axis, start, end in steps]


def test_plans_are_short():
    rows, columns, whole, total = Shard(0), Shard(1), Replicate(), Partial("sum")
    assert plan([rows], [rows]) == []
    assert plan([total], [rows]) == [(0, total, rows)]
    assert plan([rows], [columns]) == [(0, rows, columns)]
    # Both axes reduce-scatter, the inner one only after the outer one has cut the dim.
    assert plan([total, total], [rows, columns]) == [(1, total, columns), (0, total, rows)]
    assert plan([total, total], [rows, rows]) == [
        (1, total, whole), (0, total, rows), (1, whole, rows)
    ]
    # An inner axis steps aside while an outer one leaves the dim they share.
    assert plan([rows, rows], [whole, rows]) == [
        (1, rows, whole), (0, rows, whole), (1, whole, rows)
    ]


def test_wrong_local_sizes_are_refused():
    mesh = GlooMesh((2,))
    with pytest.raises(ValueError, match=r"expected a local tensor of sizes \[3, 3\].*\[2, 3\]"):
        _sharding.redistribute(
            torch.zeros(2, 3), (5, 3), (2,), (0,), mesh.groups[0],
            pack([Shard(0)]), pack([Replicate()]),
        )
    mesh.close()
