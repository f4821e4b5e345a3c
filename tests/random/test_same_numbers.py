"""The same seed gives the same bits with any number of workers and under any placements."""

import functools
import math
from pathlib import Path

import pytest
import torch
from launching import run_tests
from programs import CALLS, FACTORIES, LAYOUTS, laid, probabilities, read, seeded
from torch.distributed.tensor import Partial

import dtorch_mpi as dt


def assert_same(found, wanted, where):
    found, wanted = read(found), read(wanted)
    if isinstance(wanted, list):
        for mine, theirs in zip(found, wanted, strict=True):
            assert_same(mine, theirs, where)
        return
    assert found.dtype == wanted.dtype and torch.equal(found, wanted), where


@pytest.fixture(scope="module")
def alone():
    """What one worker gives, by the name of the call."""
    dt.shutdown()
    dt.init(workers=1)
    wanted = {
        name: read(seeded(functools.partial(call, probabilities().to("dtorch"))))
        for name, call in CALLS.items()
    }
    wanted |= {name: read(seeded(call)) for name, call in FACTORIES.items()}
    dt.shutdown()
    return wanted


@pytest.mark.parametrize("count", [2, 3, 4])
def test_any_number_of_workers(count, alone, with_workers):
    with_workers(count)
    for name, call in FACTORIES.items():
        assert_same(seeded(call), alone[name], name)


@pytest.mark.parametrize("shape, placements", LAYOUTS, ids=str)
def test_any_placements(shape, placements, alone, with_workers):
    with_workers(math.prod(shape))
    mesh = dt.init_device_mesh(shape)
    for name, call in CALLS.items():
        x = laid(probabilities(), mesh, placements)
        try:
            found = read(seeded(functools.partial(call, x)))
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error
        assert_same(found, alone[name], name)


@pytest.mark.parametrize("size", [(1,), (5,), (2, 3), (1, 9), (0, 4), (3, 0), ()])
def test_small_and_empty_tensors(size, with_workers):
    wanted = None
    for count in (1, 4):
        with_workers(count)
        mesh = dt.init_device_mesh((count,))
        for dim in range(max(len(size), 1)):
            placements = [dt.Shard(dim)] if size else [dt.Replicate()]
            made = seeded(lambda: dt.randn(size, mesh=mesh, placements=placements))  # noqa: B023
            after = torch.rand(2, device="dtorch")
            found = read([made, after])
            wanted = wanted or found
            assert_same(found, wanted, (count, dim))


def test_in_place_keeps_the_placements(with_workers):
    with_workers(4)
    mesh = dt.init_device_mesh((2, 2))
    for placements in ([dt.Shard(0), dt.Shard(1)], [dt.Shard(1), dt.Shard(1)],
                       [dt.Shard(0), dt.Replicate()], [Partial("sum"), dt.Shard(0)]):
        x = laid(probabilities(), mesh, placements)
        x.normal_()
        assert list(x.placements) == placements


def test_nothing_is_gathered(with_workers):
    with_workers(4)
    mesh = dt.init_device_mesh((4,))
    known = dt.debug.fallbacks()
    for name in ("uniform_", "normal_", "dropout", "bernoulli_.Tensor", "multinomial", "rrelu",
                 "randint_like", "normal.Tensor_Tensor", "binomial"):
        x = dt.distribute_tensor(probabilities(), mesh, [dt.Shard(0)])
        before = dt.debug.counters()["moves"]
        CALLS[name](x)
        assert dt.debug.counters()["moves"] == before, name
    assert dt.debug.fallbacks() == known


def test_processes_give_what_threads_give(alone, tmp_path):
    torch.save(alone, tmp_path / "alone.pt")
    run_tests(Path(__file__).with_name("numbers_of_processes.py"), launcher="mpirun", workers=3,
              settings={"DTORCH_NUMBERS": str(tmp_path / "alone.pt")}, limit=110)
