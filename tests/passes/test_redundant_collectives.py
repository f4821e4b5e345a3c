"""Redistributions in a row, on 2 to 4 workers."""

import pytest
import torch
from repeated import REWRITTEN, TIMES, settle

import dtorch_mpi as dt
from dtorch_mpi import Partial, Replicate, Shard


@pytest.fixture(params=[2, 3, 4])
def mesh(request):
    dt.shutdown()
    dt.init(workers=request.param)
    return dt.init_device_mesh((request.param,))


def stages_of(program, expected):
    """Runs `program(x)` on a tensor cut over its rows until it is rewritten."""
    mesh = dt.init_device_mesh((dt.num_workers(),))
    whole = torch.arange(35.0).reshape(7, 5)
    x = dt.distribute_tensor(whole, mesh, [Shard(0)])
    for step in range(TIMES):
        if step == REWRITTEN:
            settle()
        dt.sync()
        found = program(x + step)
        # Filled up to what a plan needs.
        for _ in range(8):
            found = found * 1.0
        torch.testing.assert_close(found.to_torch(), expected(whole + step))
    return max(dt.debug.graph(), key=lambda stages: len(stages["program"]))


def count(stages, name):
    return stages[name].count("redistribute")


def test_a_sum_that_is_cut_is_scattered(mesh):
    def program(y):
        total = y.t() @ y  # a sum over workers
        assert isinstance(total.placements[0], Partial)
        return total.redistribute(mesh, [Replicate()]).redistribute(mesh, [Shard(0)])

    stages = stages_of(program, lambda y: y.t() @ y)
    assert (count(stages, "program"), count(stages, "redundant_collectives")) == (2, 1)


def test_a_sum_that_is_cut_and_gathered_is_reduced(mesh):
    def program(y):
        return (y.t() @ y).redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()])

    stages = stages_of(program, lambda y: y.t() @ y)
    assert (count(stages, "program"), count(stages, "redundant_collectives")) == (2, 1)


def test_what_was_whole_is_not_gathered_again(mesh):
    def program(y):
        whole = y.redistribute(mesh, [Replicate()])
        cut = whole.redistribute(mesh, [Shard(1)])
        again = cut.redistribute(mesh, [Replicate()])
        return again + whole * 2 + cut.sum()

    stages = stages_of(program, lambda y: y * 3 + y.sum())
    # The second gather has become a copy of what was whole.
    assert count(stages, "redundant_collectives") == count(stages, "program")
    assert "redistribute 1 -> 1(" in stages["redundant_collectives"]


def test_what_is_read_between_stays(mesh):
    def program(y):
        total = (y.t() @ y).redistribute(mesh, [Replicate()])
        return total.redistribute(mesh, [Shard(0)]) + total.sum()

    stages = stages_of(program, lambda y: y.t() @ y + (y.t() @ y).sum())
    assert count(stages, "redundant_collectives") == count(stages, "program")


def test_a_write_between_is_seen(mesh):
    def program(y):
        cut = y.redistribute(mesh, [Shard(1)])
        y.mul_(2)
        return cut.redistribute(mesh, [Replicate()]) + y

    stages = stages_of(program, lambda y: y * 3)
    first = next(line for line in stages["program"].splitlines() if "redistribute" in line)
    assert first in stages["redundant_collectives"]
