"""Making tensors on the device, and random numbers."""

import pytest
import torch
from parity import check, same

FACTORIES = [
    lambda d: torch.zeros(2, 3, device=d),
    lambda d: torch.ones(3, dtype=torch.int16, device=d),
    lambda d: torch.full((2, 2), 7, device=d),
    lambda d: torch.full((2,), 0.5, device=d),
    lambda d: torch.arange(5, device=d),
    lambda d: torch.arange(1, 2, 0.25, device=d),
    lambda d: torch.linspace(0, 1, 7, device=d),
    lambda d: torch.logspace(0, 2, 3, device=d),
    lambda d: torch.eye(3, 4, device=d),
    lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    lambda d: torch.tensor(1.5, device=d),
    lambda d: torch.tensor([], device=d),
    lambda d: torch.tensor([True, False], device=d),
    lambda d: torch.tensor([1 + 2j], device=d),
    lambda d: torch.tensor([1.0], dtype=torch.float64, device=d, requires_grad=True),
    lambda d: torch.zeros_like(torch.ones(2, 3, device=d)),
    lambda d: torch.tril_indices(3, 3, device=d),
    lambda d: torch.ones(2, 2, device=d).new_full((3,), 2.0),
    lambda d: torch.hann_window(8, device=d),
    lambda d: torch.ones(2, device=d).new_zeros(3, dtype=torch.int32),
    lambda d: torch.full_like(torch.ones(2, device=d), 3, dtype=torch.int64),
    lambda d: torch.complex(torch.ones(2, device=d), torch.zeros(2, device=d)),
    lambda d: torch.scalar_tensor(3.0, device=d),
    lambda d: torch.empty(2, 3, device=d).shape,
    lambda d: torch.empty_strided((2, 3), (1, 2), device=d).stride(),
    lambda d: torch.range(0, 3, device=d),
    lambda d: torch.asarray([1.0, 2.0], device=d),
    lambda d: torch.cartesian_prod(torch.arange(2, device=d), torch.arange(3, device=d)),
]


@pytest.mark.parametrize("make", FACTORIES)
@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_factory(make):
    check(make("cpu"), make("dtorch"))


def test_device_context():
    with torch.device("dtorch"):
        made = [
            torch.ones(2),
            torch.tensor([1.0]),
            torch.nn.Linear(2, 2).weight,
            torch.arange(3),
            torch.randn(2),
            torch.as_tensor([1, 2]),
        ]
    assert all(x.device.type == "dtorch" for x in made)
    assert torch.ones(1).device.type == "cpu"


def test_default_device():
    torch.set_default_device("dtorch")
    try:
        assert torch.ones(2).device == torch.device("dtorch", 0)
        assert torch.get_default_device().type == "dtorch"
        check(torch.nn.Linear(2, 2, device="cpu").bias.shape, torch.nn.Linear(2, 2).bias.shape)
        assert repr(torch.zeros(1)) == "tensor([0.], device='dtorch:0')"
    finally:
        torch.set_default_device(None)


def test_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        same(
            lambda x: (
                x / 2,
                torch.ones(2, device=x.device),
                torch.arange(0, 1, 0.5, device=x.device),
            ),
            torch.arange(3),
        )
    finally:
        torch.set_default_dtype(torch.float32)


DRAWS = [
    lambda g: torch.rand(500, device="dtorch", generator=g),
    lambda g: torch.randn(500, device="dtorch", generator=g),
    lambda g: torch.randint(0, 9, (500,), device="dtorch", generator=g),
    lambda g: torch.randperm(500, device="dtorch", generator=g),
    lambda g: torch.empty(500, device="dtorch").uniform_(generator=g),
    lambda g: torch.empty(500, device="dtorch").normal_(2, 3, generator=g),
    lambda g: torch.empty(500, device="dtorch").exponential_(generator=g),
    lambda g: torch.full((500,), 0.3, device="dtorch").bernoulli(generator=g),
    lambda g: torch.ones(5, device="dtorch").multinomial(500, True, generator=g),
    lambda g: torch.normal(torch.zeros(500, device="dtorch"), 1.0, generator=g),
    lambda g: torch.poisson(torch.full((500,), 4.0, device="dtorch"), generator=g),
    lambda g: torch.empty(500, device="dtorch").random_(0, 100, generator=g),
]
DRAWS_FROM_THE_DEFAULT = [
    lambda: torch.rand_like(torch.ones(500, device="dtorch")),
    lambda: torch.randn_like(torch.ones(500, device="dtorch")),
    lambda: torch.randint_like(torch.ones(500, device="dtorch"), 9),
    lambda: torch.nn.functional.dropout(torch.ones(500, device="dtorch"), 0.5),
    lambda: torch.nn.init.kaiming_uniform_(torch.empty(20, 25, device="dtorch")),
    lambda: torch.nn.init.trunc_normal_(torch.empty(20, 25, device="dtorch")),
    lambda: torch.nn.functional.gumbel_softmax(torch.ones(50, 10, device="dtorch")),
    lambda: torch.nn.functional.rrelu(-torch.ones(500, device="dtorch"), training=True),
    lambda: torch.nn.functional.alpha_dropout(torch.ones(500, device="dtorch"), 0.5, True),
    lambda: torch.nn.functional.feature_alpha_dropout(
        torch.ones(5, 10, 10, device="dtorch"), 0.5, True
    ),
    lambda: torch.distributions.Normal(torch.zeros(500, device="dtorch"), 1.0).sample(),
    lambda: torch.distributions.Categorical(torch.ones(500, 4, device="dtorch")).sample(),
]


@pytest.mark.parametrize("draw", DRAWS + [lambda g, d=d: d() for d in DRAWS_FROM_THE_DEFAULT])
def test_the_same_seed_draws_the_same(draw):
    torch.manual_seed(5)
    first, second = draw(None), draw(None)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    check(first.cpu(), draw(None))
    state = torch.dtorch.get_rng_state()
    check(second.cpu(), draw(None))
    torch.dtorch.set_rng_state(state)
    check(second.cpu(), draw(None))


@pytest.mark.parametrize("draw", DRAWS)
def test_an_own_generator_leaves_the_default_alone(draw):
    generator = torch.Generator(device="dtorch").manual_seed(3)
    state = torch.dtorch.get_rng_state()
    first = draw(generator)
    assert torch.equal(state, torch.dtorch.get_rng_state())
    check(first.cpu(), draw(torch.Generator(device="dtorch").manual_seed(3)))
    assert not torch.equal(first, draw(generator))


def test_generator():
    generator = torch.Generator(device="dtorch")
    assert generator.device.type == "dtorch"
    assert generator.manual_seed(7).initial_seed() == 7
    state = generator.get_state()
    first = torch.rand(3, device="dtorch", generator=generator)
    generator.set_state(state)
    check(first.cpu(), torch.rand(3, device="dtorch", generator=generator))
    with pytest.raises(RuntimeError, match="Expected a 'dtorch' device type for generator"):
        torch.rand(3, device="dtorch", generator=torch.Generator())
    twin = generator.clone_state()
    check(
        torch.rand(3, device="dtorch", generator=generator).cpu(),
        torch.rand(3, device="dtorch", generator=twin),
    )


def test_numbers_have_their_distribution():
    torch.manual_seed(0)
    x = torch.randn(20000, device="dtorch")
    assert abs(x.mean().item()) < 0.03 and abs(x.std().item() - 1) < 0.03
    assert sorted(torch.randperm(50, device="dtorch").tolist()) == list(range(50))
    dropped = torch.nn.functional.dropout(torch.ones(20000, device="dtorch"), 0.25)
    assert abs((dropped == 0).float().mean().item() - 0.25) < 0.02
    assert dropped.max().item() == pytest.approx(1 / 0.75)


def test_fork_rng_restores_the_device():
    torch.manual_seed(0)
    before = torch.dtorch.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="dtorch"):
        torch.rand(3, device="dtorch")
    assert torch.equal(before, torch.dtorch.get_rng_state())


def test_numbers_do_not_depend_on_the_workers(several_workers):
    torch.manual_seed(11)
    drawn = torch.rand(4, device="dtorch").tolist() + torch.randperm(6, device="dtorch").tolist()
    expected = _drawn.setdefault("numbers", drawn)
    assert drawn == expected


_drawn = {}
