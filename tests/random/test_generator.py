"""The generator's state: a seed and an offset, saved, restored, forked."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import dtorch_mpi as dt


def draw(generator=None):
    made = torch.randn(5, device="dtorch", generator=generator)
    order = torch.randperm(9, device="dtorch", generator=generator)
    kept = torch.empty(8, device="dtorch").bernoulli_(0.5, generator=generator)
    return made.tolist() + order.tolist() + kept.tolist()


def test_a_saved_state_continues(with_workers):
    with_workers(2)
    torch.manual_seed(5)
    draw()
    state = torch.dtorch.get_rng_state()
    later = draw()
    torch.manual_seed(77)
    with_workers(3)
    torch.dtorch.set_rng_state(state)
    assert draw() == later
    assert state.dtype == torch.uint8 and state.device.type == "cpu"


def test_a_state_goes_through_a_file(with_workers, tmp_path):
    with_workers(1)
    torch.manual_seed(-3)
    torch.save(torch.dtorch.get_rng_state(), tmp_path / "state.pt")
    later = draw()
    torch.dtorch.set_rng_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert draw() == later


@pytest.mark.parametrize("devices", [None, [0], ["dtorch:0"]])
def test_fork_rng(devices, with_workers):
    with_workers(1)
    torch.manual_seed(0)
    draw()
    wanted = draw()
    torch.manual_seed(0)
    draw()
    with torch.random.fork_rng(devices=devices, device_type="dtorch"):
        draw()
        torch.manual_seed(9)
        draw()
    assert draw() == wanted


def test_own_generator(with_workers):
    with_workers(2)
    generator = torch.Generator("dtorch").manual_seed(4)
    torch.manual_seed(0)
    before = torch.dtorch.get_rng_state()
    first = draw(generator)
    assert torch.equal(torch.dtorch.get_rng_state(), before)
    state = generator.get_state()
    second = draw(generator)
    generator.set_state(state)
    assert draw(generator) == second
    assert draw(torch.Generator("dtorch").manual_seed(4)) == first != second
    twin = torch.Generator("dtorch")
    twin.set_state(state)
    assert draw(twin) == second
    assert generator.initial_seed() == 4
    with pytest.raises(RuntimeError, match="'dtorch'"):
        torch.rand(2, device="dtorch", generator=torch.Generator())


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputed_layer_drops_the_same(reentrant, with_workers):
    with_workers(3)
    mesh = dt.init_device_mesh((3,))
    x = dt.ones(8, 8, mesh=mesh, placements=[dt.Shard(0)], requires_grad=True)
    torch.manual_seed(1)
    y = checkpoint(lambda t: F.dropout(t, 0.5) * 2, x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())


def training(steps, state=None):
    torch.manual_seed(8)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 12), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(12, 1)
    ).to("dtorch")
    mesh = dt.init_device_mesh((dt.num_workers(),))
    dt.distribute_module(model, mesh, {"0.weight": [dt.Shard(0)], "0.bias": [dt.Shard(0)]})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if state is not None:
        model.load_state_dict(state["model"])
        torch.dtorch.set_rng_state(state["random"])
    losses = []
    for _ in range(steps):
        x = torch.randn(10, 6, device="dtorch")
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    saved = {name: value.to_torch() for name, value in model.state_dict().items()}
    return losses, {"model": saved, "random": torch.dtorch.get_rng_state()}


def test_a_restored_run_continues_bit_for_bit(with_workers, tmp_path):
    with_workers(2)
    losses, _ = training(6)
    first, state = training(3)
    torch.save(state, tmp_path / "state.pt")
    rest, _ = training(3, torch.load(tmp_path / "state.pt"))
    assert first + rest == losses


def test_no_step_misses_for_its_random_numbers(with_workers):
    with_workers(4)
    mesh = dt.init_device_mesh((2, 2))
    x = dt.ones(8, 8, mesh=mesh, placements=[dt.Shard(0), dt.Shard(1)], requires_grad=True)

    def step(i):
        F.dropout(x, 0.1 + i / 100).sum().backward()
        torch.randn(4, device="dtorch")
        torch.randint(0, 10 + i, (4,), device="dtorch")
        x.detach().uniform_(-i - 1, i)
        torch.rand_like(x)

    step(0)
    step(1)
    before = dt.debug.counters()["misses"]
    for i in range(2, 6):
        step(i)
    assert dt.debug.counters()["misses"] == before


def test_the_generator_can_be_copied(with_workers):
    with_workers(1)
    generator = torch.Generator("dtorch").manual_seed(6)
    draw(generator)
    twin = generator.clone_state() if hasattr(generator, "clone_state") else copy.copy(generator)
    assert draw(twin) == draw(generator)
