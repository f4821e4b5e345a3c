"""Files of others: safetensors and torch.save read what was exported, and are read."""

import pickle

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi.checkpoint import CheckpointError

pytest.importorskip("safetensors", reason="pip install safetensors: it is not installed")

from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

MESH = (3,)


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7)).bfloat16()


@pytest.fixture
def saved(tmp_path, mesh):
    """(folder of checkpoints, the model's values as CPU tensors)."""
    model = network()
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    dt.distribute_module(model.to("dtorch"), mesh, {"0.weight": [dt.Shard(0)]})
    dt.checkpoint.save(tmp_path / "saved", {"model": model, "step": 5, "betas": (0.9, 0.95)})
    return tmp_path / "saved", expected


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert torch.equal(left[name], right[name]), name


def test_safetensors_out(saved, tmp_path):
    folder, expected = saved
    dt.checkpoint.export_safetensors(folder, tmp_path / "m.safetensors", metadata={"by": "us"})
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert file.metadata() == {"by": "us"}
        same({name: file.get_tensor(name) for name in file.keys()}, expected)  # noqa: SIM118
    with pytest.raises(ValueError, match="is a int, and safetensors holds tensors only"):
        dt.checkpoint.export_safetensors(folder, tmp_path / "s.safetensors", key="step")
    with pytest.raises(KeyError, match="no 'net' in"):
        dt.checkpoint.export_safetensors(folder, tmp_path / "s.safetensors", key="net")
    assert [path.name for path in tmp_path.glob("*safetensors*")] == ["m.safetensors"]


def test_safetensors_of_tied_and_nested(tmp_path):
    tied = torch.ones(3)
    dt.checkpoint.save(tmp_path / "c", {"model": {"a": tied, "b": {"c": tied}}})
    dt.checkpoint.export_safetensors(tmp_path / "c", tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert sorted(file.keys()) == ["a", "b.c"]


def test_safetensors_in(saved, tmp_path, mesh):
    _, expected = saved
    save_file(expected, tmp_path / "m.safetensors")
    folder = dt.checkpoint.import_safetensors(tmp_path / "m.safetensors", tmp_path / "imported")
    same(dt.checkpoint.load(folder)["model"], expected)
    model = dt.distribute_module(network(seed=1).to("dtorch"), mesh, {"0.weight": [dt.Shard(1)]})
    dt.checkpoint.load(folder, {"model": model})
    assert model[0].weight.placements == (dt.Shard(1),)
    same({name: tensor.cpu() for name, tensor in model.state_dict().items()}, expected)


def test_torch_out(saved, tmp_path):
    folder, expected = saved
    dt.checkpoint.export_torch(folder, tmp_path / "all.pt")
    loaded = torch.load(tmp_path / "all.pt", weights_only=True)
    assert loaded["step"] == 5
    assert loaded["betas"] == (0.9, 0.95)
    same(loaded["model"], expected)
    dt.checkpoint.export_torch(folder, tmp_path / "model.pt", key="model")
    network(seed=1).load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))


def test_torch_in(saved, tmp_path, mesh):
    _, expected = saved
    torch.save({"model": expected, "epoch": 3}, tmp_path / "m.pt")
    folder = dt.checkpoint.import_torch(tmp_path / "m.pt", tmp_path / "imported")
    model = dt.distribute_module(network(seed=1).to("dtorch"), mesh, {})
    state = {"model": model, "epoch": 0}
    dt.checkpoint.load(folder, state)
    assert state["epoch"] == 3
    same({name: tensor.cpu() for name, tensor in model.state_dict().items()}, expected)
    torch.save(expected, tmp_path / "plain.pt")
    dt.checkpoint.import_torch(tmp_path / "plain.pt", tmp_path / "imported", key="model")
    same(dt.checkpoint.load(tmp_path / "imported")["model"], expected)


class Malice:
    def __reduce__(self):
        return print, ("executed",)


def test_nothing_is_executed(tmp_path, capsys):
    torch.save({"x": Malice()}, tmp_path / "bad.pt")
    with pytest.raises(pickle.UnpicklingError):
        dt.checkpoint.import_torch(tmp_path / "bad.pt", tmp_path / "imported")
    x = torch.ones(2, device="dtorch")  # what is unpickled afterwards lies where it lay
    assert pickle.loads(pickle.dumps(x)).device == x.device
    folder = dt.checkpoint.save(tmp_path / "c", {"x": 1})
    (folder / "manifest.json").write_bytes(pickle.dumps(Malice()))
    with pytest.raises(CheckpointError, match="manifest.json is damaged"):
        dt.checkpoint.load(folder)
    assert "executed" not in capsys.readouterr().out
