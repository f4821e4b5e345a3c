"""Random tensor programs give plain PyTorch's values; and those that once did not."""

import sys
from pathlib import Path

import pytest

import dtorch_mpi as dt

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from fuzz import hunt  # noqa: E402
from fuzz_programs import differences, text  # noqa: E402

# (mesh, program) that were found by scripts/fuzz.py, each with what was wrong.
KEPT = {
    # PyTorch's rule for views never ended.
    "view without elements": ((3,), """
        v0 = tensor(87, (0, 1, 4, 2), 'float64', 'S2', False)
        v1 = redistribute(v0, 'R')
        v2 = v1.view(1, 1, 0)
    """),
    # Each worker summed up its own part.
    "cumsum over a negative dim": ((4,), """
        v0 = tensor(49, (2, 4), 'bool', 'S1', False)
        v1 = v0.cumsum(dim=-1)
    """),
    # The strides of a dense part were taken for those of a slice.
    "reshape of a slice": ((4,), """
        v0 = tensor(1, (2, 1, 5, 5), 'float64', 'S3', False)
        v1 = v0.narrow(-2, 1, 4)
        v2 = v1.expand(2, 1, 4, 5).reshape(2, 4, 5)
        v3 = torch.matmul(v1.mT, v1)
    """),
    # Each worker's answer was counted.
    "sum of any over a cut dim": ((3,), """
        v0 = tensor(0, (2, 3), 'float64', 'S0', False)
        v1 = v0.any(dim=1)
        v2 = v1.sum(dim=0)
        v3 = v0.all(dim=1).sum(dim=0)
        v4 = v0.any().sum() + v0.all().sum()
    """),
    "softmax without elements": ((3,), """
        v0 = tensor(17, (0, 4, 5), 'bool', 'S1', False)
        v1 = v0.softmax(dim=-2)
        v2 = tensor(10, (0, 0, 3), 'float64', 'S1', False)
        v3 = v2.log_softmax(dim=1)
    """),
    # PyTorch's rule dropped the dim of size 0.
    "squeeze without elements": ((2, 2), """
        v0 = tensor(0, (0, 1, 0), 'float64', 'S0 S1', False)
        v1 = v0.squeeze(0)
    """),
    # The write was lost: the view was of a copy.
    "writing through a view of a cut dim": ((2, 2), """
        v0 = tensor(60, (6, 2), 'float64', 'R S0', False)
        v1 = torch.minimum(v0, v0)
        v1[1].mul_(2)
        v2 = v0.view(6, 2, 1)
        v0.clamp_(0, 1)
    """),
}


@pytest.fixture
def mesh_of():
    """Makes a mesh of worker threads of this process, as many as its shape says."""

    def make(shape):
        dt.shutdown()
        count = 1
        for size in shape:
            count *= size
        dt.init(workers=count)
        return dt.init_device_mesh(shape)

    yield make
    dt.shutdown()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2)])
def test_random_programs(mesh_of, shape):
    mesh = mesh_of(shape)
    found = hunt(mesh, seed=20, examples=40)
    assert found is None, f"{text(found[0], mesh)}\n{found[1]}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2)])
def test_random_programs_that_are_replayed(mesh_of, shape):
    mesh = mesh_of(shape)
    found = hunt(mesh, seed=21, examples=25, times=5)
    assert found is None, f"{text(found[0], mesh)}\n{found[1]}"
    assert dt.debug.counters()["replays"] > 20


@pytest.mark.timeout(300)
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2)])
def test_random_programs_over_several_graphs(mesh_of, shape):
    mesh = mesh_of(shape)
    graphs = [dt.Graph() for _ in range(3)]
    found = hunt(mesh, seed=22, examples=20, times=2, graphs=graphs)
    assert found is None, f"{text(found[0], mesh)}\n{found[1]}"


@pytest.mark.parametrize("name", KEPT)
def test_kept_program(mesh_of, name):
    shape, program = KEPT[name]
    lines = [line.strip() for line in program.strip().splitlines()]
    assert differences(lines, mesh_of(shape)) == ""
