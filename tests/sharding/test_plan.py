"""Plans: patterns of parameter names."""

import pytest
from simulate import make_mesh
from torch.distributed.tensor import Replicate, Shard

from dtorch_mpi.sharding.plan import check_plan, placements_for

MESH = make_mesh(2, 2)
ROWS, COLUMNS = (Replicate(), Shard(0)), (Replicate(), Shard(1))
NAMES = ["blocks.0.qkv.weight", "blocks.0.qkv.bias", "blocks.1.qkv.weight", "head.weight"]


def test_an_empty_plan_replicates():
    assert placements_for("head.weight", {}, MESH) == (Replicate(), Replicate())
    check_plan(NAMES, {})


def test_the_most_specific_pattern_holds_in_any_order():
    plan = {"*": ROWS, "*.qkv.*": COLUMNS, "*.1.qkv.weight": ROWS}
    for ordered in (plan, dict(reversed(plan.items()))):
        assert placements_for("blocks.0.qkv.weight", ordered, MESH) == COLUMNS
        assert placements_for("blocks.1.qkv.weight", ordered, MESH) == ROWS
        assert placements_for("head.weight", ordered, MESH) == ROWS


def test_of_equals_the_first_holds():
    assert placements_for("a.b", {"a.*": ROWS, "*.b": COLUMNS}, MESH) == ROWS


def test_one_placement_serves_a_mesh_of_one_axis():
    assert placements_for("a", {"a": Shard(0)}, make_mesh(2)) == (Shard(0),)


def test_misfits_are_refused():
    with pytest.raises(ValueError, match=r"expected 2 placements.*\('dp', 'tp'\), got \[Shard"):
        placements_for("a", {"a": [Shard(0)]}, MESH)
    with pytest.raises(TypeError, match="expected placements such as Shard"):
        placements_for("a", {"a": ["shard", "shard"]}, MESH)


def test_a_pattern_without_a_match_names_near_ones():
    with pytest.raises(ValueError, match=r"'\*\.qvk\.weight'.*blocks\.0\.qkv\.weight"):
        check_plan(NAMES, {"*.qvk.weight": ROWS})
