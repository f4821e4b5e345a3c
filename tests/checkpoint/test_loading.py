"""Loading into modules, optimizers and plain dicts; plain PyTorch is the oracle."""

import random

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi.checkpoint import CheckpointError

MESH = (3,)


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.ReLU(), torch.nn.Linear(7, 4)
    )


PLAN = {"0.weight": [dt.Shard(0)], "0.bias": [dt.Shard(0)], "3.weight": [dt.Shard(1)]}
BATCH = torch.linspace(-1, 1, 30).view(6, 5)


def placed(model, mesh, plan=PLAN):
    return dt.distribute_module(model.to("dtorch"), mesh, plan)


def train(model, optimizer, steps, device="cpu"):
    losses = []
    for _ in range(steps):
        loss = (model(BATCH.to(device)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.filterwarnings("ignore::dtorch_mpi.FallbackWarning")
@pytest.mark.parametrize(
    "make", [torch.optim.AdamW, lambda p: torch.optim.SGD(p, momentum=0.9, lr=0.1)]
)
def test_training_goes_on_as_if_never_stopped(tmp_path, mesh, make):
    oracle = network()
    oracle_optimizer = make(oracle.parameters())
    expected = train(oracle, oracle_optimizer, 6)

    model = placed(network(), mesh)
    optimizer = make(model.parameters())
    first = train(model, optimizer, 3, "dtorch")
    dt.checkpoint.save(tmp_path, {"model": model, "optimizer": optimizer, "step": 3})
    uninterrupted = train(model, optimizer, 3, "dtorch")

    again = placed(network(seed=1), mesh)
    state = {"model": again, "optimizer": make(again.parameters()), "step": 0}
    returned = dt.checkpoint.load(tmp_path, state)
    assert returned is state
    assert state["step"] == 3
    assert state["model"] is again
    assert again[0].weight.placements == (dt.Shard(0),)
    made = state["optimizer"].state[again[0].weight]
    name = "exp_avg" if "exp_avg" in made else "momentum_buffer"
    assert made[name].placements == (dt.Shard(0),), "made as its parameter lies"
    resumed = train(again, state["optimizer"], 3, "dtorch")
    assert resumed == uninterrupted
    torch.testing.assert_close(torch.tensor(first + resumed), torch.tensor(expected))


@pytest.mark.filterwarnings("ignore::dtorch_mpi.FallbackWarning")
def test_into_plain_pytorch_and_back(tmp_path, mesh):
    model = placed(network(), mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2, "dtorch")
    dt.checkpoint.save(tmp_path, {"model": model, "optimizer": optimizer})
    expected = train(model, optimizer, 2, "dtorch")

    plain = network(seed=1)
    plain_optimizer = torch.optim.AdamW(plain.parameters())
    dt.checkpoint.load(tmp_path, {"model": plain, "optimizer": plain_optimizer})
    assert plain_optimizer.state[plain[0].weight]["exp_avg"].device.type == "cpu"
    dt.checkpoint.save(tmp_path, {"model": plain, "optimizer": plain_optimizer})
    torch.testing.assert_close(train(plain, plain_optimizer, 2), expected)

    again = placed(network(seed=2), mesh)
    again_optimizer = torch.optim.AdamW(again.parameters())
    dt.checkpoint.load(tmp_path, {"model": again, "optimizer": again_optimizer})
    assert again_optimizer.state[again[0].weight]["exp_avg"].placements == (dt.Shard(0),)
    assert train(again, again_optimizer, 2, "dtorch") == expected


def test_state_dicts_are_filled_in_place(tmp_path, mesh):
    model = placed(network(), mesh)
    dt.checkpoint.save(tmp_path, {"model": model.state_dict(), "best": [1.5, (2, "x")]})
    other = placed(network(seed=1), mesh, {"0.weight": [dt.Shard(1)]})
    weight = other[0].weight
    state = {"model": other.state_dict(), "best": [0.0, (0, "")]}
    best = state["best"]
    dt.checkpoint.load(tmp_path, state)
    assert state["best"] is best
    assert best == [1.5, (2, "x")]
    assert other[0].weight is weight
    assert weight.placements == (dt.Shard(1),)
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name].to_torch(), tensor.to_torch())


def test_without_a_state(tmp_path, mesh):
    cut = dt.distribute_tensor(torch.arange(10.0).view(5, 2), mesh, [dt.Shard(0)])
    dt.checkpoint.save(tmp_path, {"cut": cut, "whole": torch.ones(2, device="dtorch"),
                                  "own": torch.zeros(2)})
    expected = {"cut": cut.to_torch(), "whole": torch.ones(2), "own": torch.zeros(2)}
    for given, placements in [
        ({}, ()), ({"mesh": mesh}, (dt.Shard(0),)), ({"device": "cpu"}, None),
        ({"mesh": mesh, "placements": {"c*": [dt.Shard(1)]}}, (dt.Shard(1),)),
    ]:  # fmt: skip
        loaded = dt.checkpoint.load(tmp_path, **given)
        where = {name: tensor.device.type for name, tensor in loaded.items()}
        if placements is None:
            assert set(where.values()) == {"cpu"}
        else:
            assert where == {"cut": "dtorch", "whole": "dtorch", "own": "cpu"}
            assert loaded["cut"].placements == placements
        for name, tensor in loaded.items():
            assert torch.equal(tensor.cpu(), expected[name])
    assert set(dt.checkpoint.load(tmp_path, only="own")) == {"own"}
    with pytest.raises(KeyError, match="no 'other' in .*the state has"):
        dt.checkpoint.load(tmp_path, only="other")


def test_partial_sums_are_saved_as_their_sum(tmp_path, mesh):
    rows = dt.distribute_tensor(torch.arange(12.0).view(6, 2), mesh, [dt.Shard(0)])
    total = rows.sum(0)
    assert total.placements[0].is_partial()
    dt.checkpoint.save(tmp_path, {"total": total})
    assert torch.equal(dt.checkpoint.load(tmp_path)["total"].cpu(), torch.tensor([30.0, 36.0]))
    into = rows.sum(0)
    dt.checkpoint.load(tmp_path, {"total": into})
    assert torch.equal(into.cpu(), torch.tensor([30.0, 36.0]))


def test_what_does_not_fit_is_named(tmp_path, mesh):
    dt.checkpoint.save(tmp_path, {"a": {"x": torch.ones(3), "n": 1}, "l": [1, 2]})
    fits = {"a": {"x": torch.zeros(3), "n": 0}, "l": [0, 0]}
    for changed, text in [
        ({"a": {"x": torch.zeros(4), "n": 0}}, r"a/x: .*shape \(3,\), the state one of \(4,\)"),
        ({"a": {"x": torch.zeros(3)}}, r"a: the checkpoint lacks nothing and has \['n'\]"),
        ({"a": {**fits["a"], "y": 1}}, r"a: the checkpoint lacks \['y'\]"),
        ({"l": [1]}, "l: the checkpoint has a list of 2, the state a list of 1"),
        ({"a": {"x": torch.zeros(3), "n": torch.zeros(1)}}, "a/n: the checkpoint has a int"),
        ({"l": {"x": 1}}, "l: the checkpoint has a list of 2, the state a dict"),
    ]:  # fmt: skip
        state = {**fits, **changed}
        with pytest.raises(ValueError, match=text):
            dt.checkpoint.load(tmp_path, state)
        assert not fits["a"]["x"].any(), "nothing is changed before all of it fits"
    partly = {"a": {"x": torch.zeros(3), "y": 5}}
    dt.checkpoint.load(tmp_path, partly, strict=False)
    assert partly["a"]["x"].all()
    assert partly["a"]["y"] == 5
    with pytest.raises(RuntimeError, match="size mismatch"):
        dt.checkpoint.save(tmp_path, {"model": torch.nn.Linear(2, 2)})
        dt.checkpoint.load(tmp_path, {"model": torch.nn.Linear(2, 3)})


def test_arguments_that_exclude_each_other(tmp_path, mesh):
    dt.checkpoint.save(tmp_path, {"x": 1})
    for given, text in [
        ({"state": {}, "mesh": mesh}, "state together with"),
        ({"device": "cpu", "mesh": mesh}, "device 'cpu' together with"),
        ({"placements": {}}, "without a mesh"),
        ({"mesh": mesh, "placements": {"nothing*": [dt.Shard(0)]}}, "matches no"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=text):
            dt.checkpoint.load(tmp_path, **given)
    with pytest.raises(ValueError, match="keep is 0"):
        dt.checkpoint.save(tmp_path, {}, keep=0)
    with pytest.raises(ValueError, match="busy is 'later'"):
        dt.checkpoint.save_async(tmp_path, {}, busy="later")
    with pytest.raises(CheckpointError, match="no checkpoint in .*nowhere"):
        dt.checkpoint.load(tmp_path / "nowhere")


def test_random_numbers_go_on(tmp_path, mesh):
    dt.checkpoint.save(tmp_path, {"random": dt.checkpoint.RandomState()})

    def numbers():
        return (torch.rand(3, device="dtorch").tolist(), torch.rand(3).tolist(), random.random())

    expected = numbers()
    assert numbers() != expected
    dt.checkpoint.load(tmp_path, {"random": dt.checkpoint.RandomState()})
    assert numbers() == expected


def test_a_scheduler_and_a_scaler(tmp_path, mesh):
    model = placed(network(), mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    dt.checkpoint.save(tmp_path, {"scheduler": scheduler, "optimizer": optimizer})
    other = torch.optim.SGD(model.parameters(), lr=1.0)
    other_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(other, 10)
    dt.checkpoint.load(tmp_path, {"scheduler": other_scheduler, "optimizer": other})
    assert other_scheduler.state_dict() == scheduler.state_dict()
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
