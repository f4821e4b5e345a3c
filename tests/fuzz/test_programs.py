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


@pytest.mark.parametrize("name", KEPT)
def test_kept_program(mesh_of, name):
    shape, program = KEPT[name]
    lines = [line.strip() for line in program.strip().splitlines()]
    assert differences(lines, mesh_of(shape)) == ""
