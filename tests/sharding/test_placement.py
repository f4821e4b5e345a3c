"""Local sizes, offsets and strides, against PyTorch's DTensor."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard

from dtorch_mpi import _sharding
from dtorch_mpi.sharding.placements import pack, unpack

PLACEMENTS = st.sampled_from([Replicate(), Shard(0), Shard(1), Shard(2), Partial("sum")])


@given(
    sizes=st.tuples(*[st.integers(0, 9)] * 3),
    axes=st.lists(st.tuples(st.integers(1, 4), PLACEMENTS), min_size=1, max_size=3),
)
def test_pieces_cover_the_tensor_once(sizes, axes):
    shape = [length for length, _ in axes]
    placements = [placement for _, placement in axes]
    covered = torch.zeros(sizes, dtype=torch.int64)
    all_sizes = set()
    for coordinate in itertools.product(*(range(n) for n in shape)):
        local = _sharding.local_sizes(sizes, shape, pack(placements), coordinate)
        start = _sharding.local_offsets(sizes, shape, pack(placements), coordinate)
        covered[tuple(slice(a, a + n) for a, n in zip(start, local, strict=True))] += 1
        all_sizes.add(tuple(local))
    copies = torch.Size(n for n, p in axes if not isinstance(p, Shard)).numel()
    assert torch.equal(covered, torch.full(sizes, copies))
    if 0 not in sizes:
        assert _sharding.is_even(sizes, shape, pack(placements)) == (len(all_sizes) == 1)


def test_two_axes_on_one_dim_cut_in_order():
    # 5 rows over 2 x 2: chunk gives 3 and 2, then 2 + 1 and 1 + 1.
    local = [
        _sharding.local_sizes([5], [2, 2], pack([Shard(0), Shard(0)]), c)
        for c in itertools.product(range(2), range(2))
    ]
    assert local == [[2], [1], [1], [1]]


def test_strides_keep_the_order_of_dims():
    assert _sharding.local_strides([1, 8], [4, 3]) == [1, 4]
    assert _sharding.local_strides([8, 1], [4, 3]) == [3, 1]
    assert _sharding.local_strides([6, 6, 1], [1, 5, 6]) == [30, 6, 1]


def test_packing():
    made = [Replicate(), Shard(3), *(Partial(op) for op in ("sum", "avg", "product", "min", "max"))]
    assert list(unpack(pack(made))) == made
    for wrong in (3, -1, 1 << 8, 2 | 5 << 8, 2 | 1 << 16, 1 << 40):
        with pytest.raises(ValueError, match="packed placement"):
            _sharding.is_even([4], [2], [wrong])


def test_misfits_are_refused():
    with pytest.raises(ValueError, match=r"2 dims as \[Shard\(2\)\]"):
        _sharding.local_slice(torch.zeros(2, 2), [2], pack([Shard(2)]), [0])
    with pytest.raises(ValueError, match="one placement for each of 2 mesh axes"):
        _sharding.local_slice(torch.zeros(2, 2), [2, 2], pack([Shard(0)]), [0, 0])
    with pytest.raises(ValueError, match="2 shards"):
        _sharding.assemble([torch.zeros(2)], [2], [2], pack([Replicate()]))


def test_copies_may_be_left_out():
    part = torch.arange(3.0)
    whole = _sharding.assemble([part, None, part, None], [6], [2, 2], pack([Shard(0), Replicate()]))
    assert torch.equal(whole, torch.cat([part, part]))
    with pytest.raises(ValueError, match="missing"):
        _sharding.assemble([part, None], [6], [2], pack([Shard(0)]))
