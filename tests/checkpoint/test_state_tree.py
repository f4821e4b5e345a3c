"""What a state may hold, without workers: it comes back as it was."""

import json
import math

import h5py
import numpy as np
import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi.checkpoint import CheckpointError

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
    torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def bits(tensor):
    return tensor.contiguous().view(tensor.shape or (1,)).view(torch.uint8)


def random_bits(dtype, *sizes):
    """Elements of any bits, NaNs of all kinds among them."""
    if dtype == torch.bool:
        return torch.rand(sizes) < 0.5
    count = math.prod(sizes) * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8).view(dtype).view(sizes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elements_keep_their_bits(tmp_path, dtype):
    state = {"matrix": random_bits(dtype, 5, 7), "number": random_bits(dtype, 1)[0],
             "nothing": torch.empty(3, 0, dtype=dtype)}
    folder = dt.checkpoint.save(tmp_path, state)
    loaded = dt.checkpoint.load(tmp_path)
    for name, tensor in state.items():
        assert loaded[name].dtype == dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(bits(loaded[name]), bits(tensor)), name
    with h5py.File(folder / "index.h5") as index:
        assert index["matrix"].attrs["dtype"] == str(dtype).removeprefix("torch.")
        assert index["matrix"][()].tobytes() == bits(state["matrix"]).numpy().tobytes()


def test_values_come_back_as_they_were(tmp_path):
    state = {
        "step": 7, "large": 2**80, "rate": 0.1, "tiny": 5e-324, "names": ["a", "b", None, True],
        "betas": (0.9, 0.95), "infinite": (math.inf, -math.inf), "text": "ß/%\n", "": 1,
        "bytes": b"\0\xff", "complex": 1 + 2j, "dtype": torch.bfloat16, "$odd": {"$tensor": "x"},
        "device": torch.device("cpu"), 5: {0: "zero", "0": "text", None: 1, (1, "a"): 2},
        "nested": [{"x": torch.arange(3)}, (torch.tensor(2.0),)], "a/b": torch.ones(1),
        "a": {"b": torch.zeros(1)}, ".": torch.ones(2), "size": torch.Size([2, 3]),
    }  # fmt: skip
    dt.checkpoint.save(tmp_path, state)
    loaded = dt.checkpoint.load(tmp_path)

    def same(left, right):
        if isinstance(left, torch.Tensor):
            return torch.equal(left, right) and left.dtype == right.dtype
        if isinstance(left, dict):
            return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
        if isinstance(left, (list, tuple)):
            kinds = type(right) is (tuple if isinstance(left, tuple) else list)
            return kinds and len(left) == len(right) and all(map(same, left, right))
        return type(left) is type(right) and left == right

    assert same(state, loaded), loaded


def test_not_a_number_comes_back(tmp_path):
    dt.checkpoint.save(tmp_path, {"loss": math.nan})
    assert math.isnan(dt.checkpoint.load(tmp_path)["loss"])


def test_keys_that_look_alike_stay_apart(tmp_path):
    state = {0: torch.zeros(2), "0": torch.ones(2)}
    dt.checkpoint.save(tmp_path, state)
    loaded = dt.checkpoint.load(tmp_path)
    assert torch.equal(loaded[0], state[0])
    assert torch.equal(loaded["0"], state["0"])


def test_one_tensor_under_two_names_is_written_once(tmp_path):
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(2)))
    model[1].weight = model[0].weight
    folder = dt.checkpoint.save(tmp_path, {"model": model})
    with h5py.File(folder / "index.h5") as index:
        assert list(index["model"]) == ["0.weight"]
    loaded = dt.checkpoint.load(tmp_path)["model"]
    assert loaded["0.weight"] is loaded["1.weight"]
    assert torch.equal(loaded["0.weight"], model[0].weight)


@pytest.mark.parametrize(
    ("value", "text"),
    [(object(), "a builtins.object at inner/value"), (np.ones(2), "numpy.ndarray at inner/value"),
     (print, "builtin"), ({object(): 1}, "a key <object"),
     (torch.eye(2).to_sparse(), "torch.sparse_coo"), (torch.ones(2, device="meta"), "on meta")],
)  # fmt: skip
def test_what_can_not_be_saved_is_named(tmp_path, value, text):
    with pytest.raises(TypeError, match=text):
        dt.checkpoint.save(tmp_path / "new", {"inner": {"value": value}})
    assert not (tmp_path / "new").exists()


def test_views_and_lazy_conjugates_are_saved_as_they_look(tmp_path):
    matrix = torch.arange(12.0).view(3, 4)
    numbers = torch.randn(4, dtype=torch.complex64)
    dt.checkpoint.save(tmp_path, {"turned": matrix.t()[1:3], "conj": numbers.conj()})
    loaded = dt.checkpoint.load(tmp_path)
    assert torch.equal(loaded["turned"], matrix.t()[1:3])
    assert torch.equal(loaded["conj"], numbers.conj().resolve_conj())


def test_a_value_of_a_later_version_is_refused(tmp_path):
    folder = dt.checkpoint.save(tmp_path, {"x": 1})
    state, manifest = folder / "state.json", folder / "manifest.json"
    state.write_text(json.dumps({"state": {"x": {"$code": "print()"}}, "sharded_dims": {}}))
    from dtorch_mpi.checkpoint.manifest import entry

    content = json.loads(manifest.read_text())
    content["files"]["state.json"] = entry(state)
    manifest.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"marked \$code"):
        dt.checkpoint.load(tmp_path)
    content["format"] = "dtorch_mpi checkpoint 9"
    manifest.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="dtorch_mpi checkpoint 9"):
        dt.checkpoint.load(tmp_path)
