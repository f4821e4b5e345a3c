"""Meshes and placements as users name them, over several runtimes and threads of one process."""

import threading

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

import dtorch_mpi as dt

X = torch.arange(40.0).view(5, 8)


@pytest.fixture(autouse=True)
def four_workers():
    dt.shutdown()
    dt.init(workers=4)
    yield
    dt.sync()
    dt.shutdown()


def test_numbers_begin_anew_with_the_workers():
    dt.shutdown()
    dt.init(workers=2)
    line = dt.init_device_mesh((2,))
    old = dt.distribute_tensor(X, line, [Shard(0)])
    assert old.redistribute(line, [Partial()]).sum().item() == X.sum()
    dt.shutdown()
    dt.init(workers=4)
    mesh = dt.init_device_mesh((2, 2))
    x = dt.distribute_tensor(X, mesh, [Shard(0), Shard(1)])
    torch.testing.assert_close((x + 1).to_torch(), X + 1)
    assert [tuple(part.shape) for part in dt.local_shards(x)] == [(3, 4), (3, 4), (2, 4), (2, 4)]
    # A number that was a partial sum's must not be taken for one: a value goes in by parts.
    for placements in ([Shard(1), Replicate()], [Replicate(), Shard(0)]):
        y = dt.distribute_tensor(torch.zeros(5, 8), mesh, placements)
        torch.testing.assert_close(y.copy_(X).to_torch(), X)
    for ask in (lambda: old.placements, lambda: old + x, lambda: old + 1, lambda: old.to_torch()):
        with pytest.raises(RuntimeError, match="shut down"):
            ask()


def test_threads_that_define_shardings_at_once():
    mesh = dt.init_device_mesh((2, 2))
    kinds = [Replicate(), Shard(0), Shard(1), Partial(), Partial("max"), Partial("avg")]
    start, wrong = threading.Barrier(4), []

    def work(number):
        start.wait()
        try:
            for a in kinds[number % 2 :: 2] + kinds:
                for b in kinds:
                    x = dt.distribute_tensor(X, mesh).redistribute(mesh, [a, b])
                    torch.testing.assert_close(x.to_torch(), X)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def test_dims_count_from_the_end_too():
    mesh = dt.init_device_mesh((4,))
    x = dt.distribute_tensor(X, mesh, [Shard(-1)])
    assert x.placements == (Shard(1),)
    assert x.redistribute(mesh, [Shard(-2)]).placements == (Shard(0),)
    model = dt.distribute_module(torch.nn.Linear(8, 4).to("dtorch"), mesh, {"*": [Shard(-1)]})
    assert model.weight.placements == (Shard(1),) and model.bias.placements == (Shard(0),)
    torch.testing.assert_close(model(x).detach().to_torch(),
                               torch.nn.functional.linear(X, *map(torch.Tensor.cpu, (
                                   model.weight.detach(), model.bias.detach()))))


def test_plan_that_does_not_fit_names_the_parameter_and_places_nothing():
    mesh = dt.init_device_mesh((4,))
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4)).to("dtorch")
    with pytest.raises(ValueError, match=r"^1\.num_batches_tracked: S\(0\) of a tensor"):
        dt.distribute_module(model, mesh, {"*": [Shard(0)]})
    assert all(parameter.placements == () for parameter in model.parameters())
    plan = {"*": [Shard(0)], "*.num_batches_tracked": [Replicate()]}
    dt.distribute_module(model, mesh, plan)
    assert all(parameter.placements == (Shard(0),) for parameter in model.parameters())


def test_placing_what_is_no_tensor():
    with pytest.raises(TypeError, match="expected a tensor, got list"):
        dt.distribute_tensor([1, 2], dt.init_device_mesh((4,)), [Shard(0)])


def test_one_placement_stands_for_a_list_of_one():
    mesh = dt.init_device_mesh((4,))
    assert dt.distribute_tensor(X, mesh, Shard(0)).placements == (Shard(0),)


@pytest.mark.parametrize(("ask", "kind", "text"), [
    (lambda mesh: dt.distribute_tensor(X, mesh, [Shard(2)]), ValueError, "2 dims"),
    (lambda mesh: dt.distribute_tensor(X, mesh, [Shard(-3)]), ValueError, "2 dims"),
    (lambda mesh: dt.distribute_tensor(X, mesh, [Shard(0)] * 2), ValueError, "2 placements"),
    (lambda mesh: dt.distribute_tensor(X, mesh, ["rows"]), TypeError, "expected Shard"),
    (lambda mesh: dt.distribute_tensor(X, "mesh", [Shard(0)]), TypeError, "expected a DeviceMesh"),
    (lambda mesh: X.redistribute(mesh, [Shard(0)]), TypeError, "dtorch device"),
    (lambda mesh: dt.init_device_mesh((-1, -4)), ValueError, "4"),
    (lambda mesh: mesh["other"], ValueError, "whole mesh"),
])  # fmt: skip
def test_refusals(ask, kind, text):
    mesh = dt.init_device_mesh((4,), mesh_dim_names=("rows",))
    assert mesh["rows"] is mesh
    with pytest.raises(kind, match=text):
        ask(mesh)
