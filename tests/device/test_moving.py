"""Moving, copying, saving and printing."""

import copy
import io
import pickle

import numpy
import pytest
import torch
from parity import check, on, seeded

import dtorch_mpi as dt

X = seeded(3, 4)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.uint8,
        torch.int16,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.complex64,
        torch.bool,
    ],
)
def test_there_and_back(dtype):
    x = X.to(dtype)
    torch.testing.assert_close(x.to("dtorch").cpu(), x)


def test_ways_to_move():
    x = X.to("dtorch")
    for moved in (
        X.to(torch.device("dtorch")),
        X.to("dtorch:0"),
        X.dtorch(),
        X.to(x),
        X.to("dtorch", torch.float32),
        torch.empty(3, 4, device="dtorch").copy_(X),
        X.to("dtorch", non_blocking=True),
        torch.as_tensor(X, device="dtorch"),
        torch.tensor(X.tolist(), device="dtorch"),
        x.to("dtorch"),
        x.dtorch(),
        x.new_tensor(X.tolist()),
    ):
        check(X, moved)
    assert x.to("dtorch") is x
    assert x.is_dtorch and not X.is_dtorch
    assert x.device == torch.device("dtorch", 0)
    check(X.double(), X.to("dtorch", torch.float64))
    host = torch.empty(3, 4)
    host.copy_(x)
    torch.testing.assert_close(host, X)
    assert torch.equal(x.to("cpu", torch.float64), X.double())


def test_a_moved_tensor_is_a_copy():
    x = X.clone()
    moved = x.to("dtorch")
    x.zero_()
    check(X, moved)
    back = moved.cpu()
    back.zero_()
    check(X, moved)


def test_moving_is_differentiable():
    x = X.clone().requires_grad_()
    (x.to("dtorch") * 2).sum().cpu().mul(3).backward()
    torch.testing.assert_close(x.grad, torch.full_like(X, 6))


def test_reading_single_values():
    x = on("dtorch", torch.tensor([[1.5, -2.0]]))
    assert x[0, 0].item() == 1.5
    assert x.tolist() == [[1.5, -2.0]]
    assert float(x[0, 1]) == -2.0 and int(x[0, 1]) == -2
    assert torch.tensor(3, device="dtorch").item() == 3
    assert bool(torch.tensor(True, device="dtorch"))
    assert torch.tensor(1 + 2j, device="dtorch").item() == 1 + 2j
    assert list(range(10))[torch.tensor(4, device="dtorch")] == 4
    with pytest.raises(RuntimeError) as expected:
        X.item()
    with pytest.raises(RuntimeError) as found:
        X.to("dtorch").item()
    assert str(found.value) == str(expected.value)
    assert f"{torch.tensor(2.5, device='dtorch'):.2f}" == "2.50"


def test_numpy_asks_for_a_cpu_tensor():
    x = X.to("dtorch")
    for convert in (lambda: x.numpy(), lambda: numpy.asarray(x)):
        with pytest.raises(TypeError, match="can't convert dtorch:0 device type tensor to numpy"):
            convert()
    assert numpy.array_equal(x.cpu().numpy(), X.numpy())
    check(X, torch.from_numpy(X.numpy()).to("dtorch"))


PRINTED = [
    X,
    torch.arange(5),
    torch.zeros(0, 3),
    torch.tensor(2.5),
    X.to(torch.bfloat16),
    X > 0,
    torch.complex(X, X),
    torch.randn(40, 50, generator=torch.Generator().manual_seed(0)),
    torch.ones(3).requires_grad_(),
    X.requires_grad_(False).t(),
    torch.tensor([float("nan"), float("inf"), 1e-9]),
    torch.ones(2, 3, 4, dtype=torch.int32),
]


@pytest.mark.parametrize("x", PRINTED, ids=range(len(PRINTED)))
def test_printing_reads_once(x):
    def without_device(text):
        # Where the device is named, a line may be broken elsewhere.
        return "".join(text.split()).replace(",device='dtorch:0'", "")

    moved = on("dtorch", x)
    before = dt.debug.counters()["reads"]
    text = repr(moved)
    assert dt.debug.counters()["reads"] - before == (1 if x.numel() else 0)
    assert "device='dtorch:0'" in text
    assert without_device(text) == without_device(repr(x))


def test_printing_reads_only_what_it_shows():
    x = torch.arange(3e6).view(3, 1000, 1000)
    moved = x.to("dtorch")
    assert "".join(repr(moved).split()).replace(",device='dtorch:0'", "") == "".join(
        repr(x).split()
    )
    assert torch._tensor_str.PRINT_OPTS.threshold == 1000
    assert str(moved[0, 0, :2]) == "tensor([0., 1.], device='dtorch:0')"


def test_printing_a_result_tells_its_gradient_function():
    x = torch.ones(2, device="dtorch", requires_grad=True)
    assert repr(x * 2) == "tensor([2., 2.], device='dtorch:0', grad_fn=<MulBackward0>)"
    assert repr(torch.nn.Parameter(x)).startswith("Parameter containing:\ntensor([1., 1.]")
    assert str(x.detach()) == f"{x.detach()}"


def test_deepcopy():
    x = X.to("dtorch")
    twin = copy.deepcopy(x)
    twin.add_(1)
    check(X, x)
    check(X + 1, twin)
    leaf = on("dtorch", X.clone().requires_grad_())
    leaf.grad = torch.ones_like(leaf)
    twin = copy.deepcopy(leaf)
    assert twin.requires_grad and twin.is_leaf
    check(torch.ones(3, 4), twin.grad)
    y = copy.deepcopy(X.t().to("dtorch"))
    assert y.stride() == (1, 4)
    model = torch.nn.Linear(3, 2)
    moved = copy.deepcopy(model.to("dtorch"))
    assert isinstance(moved.weight, torch.nn.Parameter)
    check(model.weight.detach().cpu(), moved.weight.detach())


def test_deepcopy_keeps_shared_parameters_shared():
    model = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
    model[1].weight = model[0].weight
    twin = copy.deepcopy(model.to("dtorch"))
    assert twin[1].weight is twin[0].weight
    assert twin[0].weight is not model[0].weight


def test_pickle():
    x = X.to("dtorch")
    check(X, pickle.loads(pickle.dumps(x)))
    parameter = pickle.loads(pickle.dumps(torch.nn.Parameter(x)))
    assert isinstance(parameter, torch.nn.Parameter)
    check(torch.nn.Parameter(X), parameter)


def _saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


def test_save_and_load():
    x = X.to("dtorch")
    check(X, torch.load(_saved(x)))
    check(X, torch.load(_saved(x), weights_only=True))
    host = torch.load(_saved(x), map_location="cpu")
    assert host.device.type == "cpu"
    torch.testing.assert_close(host, X)
    check(X, torch.load(_saved(X), map_location="dtorch"))
    check(X, torch.load(_saved(x), map_location=torch.device("dtorch:0")))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "older"])
def test_loaded_tensors_share_what_the_saved_ones_share(zipped):
    def changed(values):
        whole, part, turned, as_ints = values
        whole[2:4] = 7
        turned[0] += 1
        return [*values, as_ints.sum()]

    x = X.clone().view(-1)
    values = [x, x[1:4], x.view(X.shape).t(), x.view(torch.int32)]
    saved = io.BytesIO()
    torch.save(values[:3], saved, _use_new_zipfile_serialization=zipped)
    saved.seek(0)
    loaded = torch.load(saved, map_location="dtorch")
    loaded.append(loaded[0].view(torch.int32))
    for expected, got in zip(changed(values), changed(loaded), strict=True):
        check(expected, got)
    assert loaded[1].storage_offset() == 1


def test_setting_to_a_storage_of_the_users_is_refused():
    with pytest.raises(RuntimeError, match="can't be set to a storage on cpu"):
        torch.empty(0, device="dtorch").set_(torch.ones(2).untyped_storage(), 0, (2,), (1,))


def test_save_and_load_of_a_state():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("dtorch")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3, device="dtorch")).sum().backward()
    optimizer.step()
    saved = _saved({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3})
    for location in (None, "cpu", "dtorch"):
        saved.seek(0)
        state = torch.load(saved, map_location=location)
        twin = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("dtorch")
        twin.load_state_dict(state["model"])
        restored = torch.optim.AdamW(twin.parameters())
        restored.load_state_dict(state["optimizer"])
        for key, value in model.state_dict().items():
            check(value.cpu(), twin.state_dict()[key])
        for number, entry in optimizer.state_dict()["state"].items():
            other = restored.state_dict()["state"][number]
            assert other["exp_avg"].device.type == "dtorch"
            check(entry["exp_avg"].cpu(), other["exp_avg"])
    host = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    host.load_state_dict(model.state_dict())


def test_meta_and_to_empty():
    with torch.device("meta"):
        model = torch.nn.Linear(3, 2)
    model = model.to_empty(device="dtorch")
    torch.nn.init.ones_(model.weight)
    check(torch.ones(2, 3), model.weight.detach())
    assert model.weight.to("meta").device.type == "meta"
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        torch.empty(2, device="meta").to("dtorch")


def test_pinned_memory_is_not_needed():
    assert not X.is_pinned()
    assert not X.to("dtorch").is_pinned()
    torch.testing.assert_close(X.pin_memory(), X)


def test_storage_is_refused_in_words():
    x = X.to("dtorch")
    for ask in (lambda: x.data_ptr(), lambda: x.untyped_storage().data_ptr()):
        with pytest.raises(RuntimeError, match="storage"):
            ask()
