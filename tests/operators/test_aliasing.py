"""Views and writes show what PyTorch shows, whatever the placements."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dtorch_mpi as dt
from dtorch_mpi import Partial, Replicate, Shard

LAYOUTS = {
    "rows": ((4,), [Shard(0)]),
    "columns": ((4,), [Shard(1)]),
    "both": ((2, 2), [Shard(0), Shard(1)]),
    "crossed": ((2, 2), [Shard(1), Shard(0)]),
    "rows twice": ((2, 2), [Shard(0), Shard(0)]),
    "copies": ((2, 2), [Replicate(), Shard(0)]),
    "sum": ((4,), [Partial()]),
    "rows and sum": ((2, 2), [Shard(0), Partial()]),
    "none": ((4,), [Replicate()]),
}


@pytest.fixture(scope="module")
def meshes():
    dt.shutdown()
    dt.init(workers=4)
    yield {shape: dt.init_device_mesh(shape) for shape in ((4,), (2, 2))}
    dt.shutdown()


def placed(tensor, layout, meshes):
    """The tensor, in the memory order it has, under one of LAYOUTS."""
    shape, placements = LAYOUTS[layout]
    tensor = tensor.clone()
    if any(placement.is_partial() for placement in placements):
        whole = dt.distribute_tensor(tensor, meshes[shape], [Replicate()] * len(shape))
        return whole.redistribute(placements=placements)
    return dt.distribute_tensor(tensor, meshes[shape], placements)


def numbers(*sizes, dtype=torch.float64):
    count = torch.Size(sizes).numel()
    return torch.arange(1, count + 1, dtype=torch.float64).view(sizes).to(dtype)


def add_to_row(x):
    x[1].add_(1)


def set_rows(x):
    x[1:3] = torch.full((2, x.shape[1]), 7.0, dtype=x.dtype).to(x.device)


def view_of_view(x):
    x.t()[1:][:, 2].mul_(3)


def through_flat(x):
    x.view(-1)[3:7].zero_()


def write_base_after_view(x):
    row = x[2]
    x.add_(10)
    row.mul_(2)
    x[:, 0] = row[0]


def two_views(x):
    upper, lower = x[:2], x[1:]
    upper.add_(1)
    lower.mul_(2)
    upper.sub_(x[3])


def diagonal(x):
    x.diagonal().fill_(-1)


def out_into_row(x):
    torch.add(x[0], x[1], out=x[2])


def masked(x):
    x[x > 6] = 0


def indexed(x):
    x[torch.tensor([0, 2], device=x.device), 1] = 5


def chunks(x):
    for number, part in enumerate(x.chunk(2, 1)):
        part.add_(number + 1)


def data_copy(x):
    x.data.copy_(x.data.flip(0))


def foreach(x):
    torch._foreach_add_(list(x.unbind(0)), 2)


def detached(x):
    x.detach()[1].zero_()


def strided(x):
    x.as_strided((2, 2), (3, 1), 1).add_(100)


def turned(x):
    x[1:].t_()[0].add_(3)


WRITES = [
    add_to_row, set_rows, view_of_view, through_flat, write_base_after_view, two_views, diagonal,
    out_into_row, masked, indexed, chunks, data_copy, foreach, detached, strided, turned,
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_a_write_shows(write, layout, meshes):
    for sizes in ((4, 4), (5, 3)):
        expected = numbers(*sizes)
        found = placed(expected, layout, meshes)
        before = found.placements
        write(expected)
        write(found)
        torch.testing.assert_close(found.cpu(), expected)
        # Where a view needed the parts together, they stay so.
        for old, new in zip(before, found.placements, strict=True):
            assert new == old or new.is_replicate()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_updates_without_grad(layout, meshes):
    plain = torch.nn.Parameter(numbers(5, 3))
    ours = torch.nn.Parameter(placed(plain.detach(), layout, meshes))
    for parameter in (plain, ours):
        view = parameter[1:]
        (view * 2).sum().backward()
        with torch.no_grad():
            parameter.sub_(parameter.grad * 0.5)
            parameter[0] = 1
            parameter.data.mul_(2)
    torch.testing.assert_close(ours.detach().cpu(), plain.detach())
    torch.testing.assert_close(ours.grad.cpu(), plain.grad)


def test_a_complex_base_and_its_parts(meshes):
    expected = torch.complex(numbers(4, 3), -numbers(4, 3))
    found = placed(expected, "rows", meshes)
    for x in (expected, found):
        real, conjugate = torch.view_as_real(x), x.conj()
        real[1].add_(1)
        x[0].mul_(2)
        conjugate[2, 1] = 5
        conjugate.imag[3].neg_()
    torch.testing.assert_close(found.cpu(), expected)


def test_a_row_that_is_read_only_leaves_the_base_in_place(meshes):
    x = placed(numbers(8, 3), "rows", meshes)
    row = x[3]
    assert (row + 1).sum().item() == numbers(8, 3)[3].sum().item() + 3
    assert x.placements == (Shard(0),)


# ---- programs that nobody wrote ----------------------------------------------------------------

VIEWS = [
    lambda x, a, b: x.select(a % x.dim(), b % x.shape[a % x.dim()]),
    lambda x, a, b: x.narrow(a % x.dim(), b % x.shape[a % x.dim()],
                             x.shape[a % x.dim()] - b % x.shape[a % x.dim()]),
    lambda x, a, b: x[:: 1 + b % 3],
    lambda x, a, b: x.transpose(a % x.dim(), b % x.dim()),
    lambda x, a, b: x.view(-1),
    lambda x, a, b: x.view(x.shape[0], -1),
    lambda x, a, b: x.unsqueeze(a % (x.dim() + 1)),
    lambda x, a, b: x.squeeze(),
    lambda x, a, b: x.diagonal(),
    lambda x, a, b: x.chunk(2, a % x.dim())[b % 2],
    lambda x, a, b: x.unfold(a % x.dim(), 2, 2),
    lambda x, a, b: x.detach(),
    lambda x, a, b: x.unflatten(0, (-1, 2)),
]

WRITES_OF_PROGRAMS = [
    lambda x, y, a: x.add_(a),
    lambda x, y, a: x.mul_(2),
    lambda x, y, a: x.fill_(a),
    lambda x, y, a: x.copy_(y),
    lambda x, y, a: x.add_(y),
    lambda x, y, a: x.__setitem__(a % x.shape[0], a),
    lambda x, y, a: x.__setitem__(slice(a % x.shape[0], None), -a),
    lambda x, y, a: x.masked_fill_(x > a, a),
    lambda x, y, a: torch.add(y, a, out=x) if x.shape == y.shape else x.zero_(),
    lambda x, y, a: torch._foreach_add_([x], a),
    lambda x, y, a: x.cumsum_(0),
    lambda x, y, a: x.index_fill_(0, torch.tensor([0], device=x.device), a),
]

STEPS = st.lists(
    st.tuples(st.sampled_from(["view", "view", "write", "drop", "new"]), st.integers(0, 60),
              st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    min_size=3, max_size=12,
)


def raises(function, *arguments):
    try:
        function(*arguments)
    except Exception:
        return True
    return False


def step_on(tensors, step):
    """One step of a program, on a list of tensors of one side."""
    kind, number, first, second, value = step
    x, y = tensors[first % len(tensors)], tensors[second % len(tensors)]
    if kind == "view":
        tensors.append(VIEWS[number % len(VIEWS)](x, second, value))
    elif kind == "write":
        WRITES_OF_PROGRAMS[number % len(WRITES_OF_PROGRAMS)](x, y, value)
    elif kind == "drop" and len(tensors) > 1:
        del tensors[first % len(tensors)]
    elif kind == "new":
        tensors.append(x + 1)


def may_step(tensors, step):
    """Whether PyTorch takes the step, tried on copies that share memory as the tensors do."""
    memory = {}
    copies = []
    for tensor in tensors:
        key = tensor.untyped_storage().data_ptr()
        if key not in memory:
            memory[key] = tensor.untyped_storage().clone()
        copies.append(torch.empty(0, dtype=tensor.dtype).set_(
            memory[key], tensor.storage_offset(), tensor.shape, tensor.stride()))
    return not raises(step_on, copies, step)


@settings(
    max_examples=60, deadline=None, database=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(layout=st.sampled_from(sorted(LAYOUTS)), sizes=st.sampled_from([(4, 4), (5, 3), (2, 6, 3)]),
       turned=st.booleans(), steps=STEPS)
def test_random_programs(meshes, layout, sizes, turned, steps):
    start = numbers(*sizes)
    if turned:
        start = start.transpose(0, 1)
    plain, ours = [start], [placed(start, layout, meshes)]
    for step in steps:
        if not may_step(plain, step):
            continue
        step_on(plain, step)
        step_on(ours, step)
    for one, other in itertools.zip_longest(plain, ours):
        assert one.shape == other.shape
        torch.testing.assert_close(other.cpu(), one, equal_nan=True)


def numbers_of_own(x):
    x[:, 1:] = x[0, 0]
    x[1] = x[2].sum()
    x[...] = x[0, 1] * 2 + x
    x[2:] = x.detach()[1, 1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_number_of_its_own(layout, meshes):
    """PyTorch's assignments on the CPU take a number out of the memory that is written."""
    expected = numbers(5, 3)
    found = placed(expected, layout, meshes)
    for x in (expected, found):
        numbers_of_own(x)
    torch.testing.assert_close(found.cpu(), expected)
    for device in ("cpu", "dtorch"):
        x = torch.tensor(3.0, device=device)
        view = x.view(1, 1, 1)
        view[0:] = x
        assert view.tolist() == [[[3.0]]]
