"""One worker's numbers against the distributions that PyTorch documents.

Kolmogorov and Smirnov's test at p = 1e-4, under a fixed seed.
"""

import math

import pytest
import torch
import torch.nn.functional as F

import dtorch_mpi as dt

N = 200_000
CRITICAL = 2.2253  # of sqrt(n) times the largest distance: exceeded once in 10^4


@pytest.fixture(autouse=True)
def one_worker(with_workers):
    with_workers(1)
    torch.manual_seed(2)


def empty(dtype=torch.float64, size=N):
    return torch.empty(size, dtype=dtype, device="dtorch")


def kolmogorov_smirnov(values, cdf):
    ordered = values.double().sort().values
    expected = cdf(ordered)
    n = len(ordered)
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    distance = max((steps[1:] - expected).max(), (expected - steps[:-1]).max())
    assert distance * math.sqrt(n) < CRITICAL


def normal_cdf(x):
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


CONTINUOUS = {
    "uniform": (lambda x: x.uniform_(-1, 3), lambda v: (v + 1) / 4),
    "normal": (lambda x: x.normal_(2, 3), lambda v: normal_cdf((v - 2) / 3)),
    "exponential": (lambda x: x.exponential_(0.5), lambda v: 1 - torch.exp(-0.5 * v)),
    "cauchy": (lambda x: x.cauchy_(1, 2), lambda v: torch.atan((v - 1) / 2) / math.pi + 0.5),
    "log_normal": (lambda x: x.log_normal_(1, 0.5), lambda v: normal_cdf((v.log() - 1) / 0.5)),
    "gamma": (lambda x: torch._standard_gamma(x.fill_(0.7)),
              lambda v: torch.special.gammainc(torch.full_like(v, 0.7), v)),
    "gamma.large": (lambda x: torch._standard_gamma(x.fill_(9.0)),
                    lambda v: torch.special.gammainc(torch.full_like(v, 9.0), v)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name, dtype):
    draw, cdf = CONTINUOUS[name]
    values = draw(empty(dtype)).cpu()
    assert torch.isfinite(values).all()
    kolmogorov_smirnov(values, cdf)


# (draw, mean, variance)
DISCRETE = {
    "bernoulli": (lambda x: x.bernoulli_(0.3), 0.3, 0.21),
    "bernoulli.Tensor": (lambda x: torch.bernoulli(x.fill_(0.3)), 0.3, 0.21),
    "geometric": (lambda x: x.geometric_(0.25), 4.0, 12.0),
    "poisson": (lambda x: torch.poisson(x.fill_(3.5)), 3.5, 3.5),
    "poisson.large": (lambda x: torch.poisson(x.fill_(80.0)), 80.0, 80.0),
    "binomial": (lambda x: torch.binomial(x.fill_(12), torch.full_like(x, 0.25)), 3.0, 2.25),
    "randint": (lambda x: torch.randint(-5, 6, (N,), device="dtorch").double(), 0.0, 10.0),
    "random_": (lambda x: x.byte().random_().double(), 63.5 * 2 + 0.5, (256**2 - 1) / 12),
    "multinomial": (
        lambda x: torch.multinomial(torch.tensor([1.0, 0.0, 2.0], device="dtorch"), N,
                                    replacement=True).double(), 4 / 3, 8 / 9,
    ),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_mean_and_variance(name):
    draw, mean, variance = DISCRETE[name]
    values = draw(empty()).cpu()
    assert torch.equal(values, values.round())
    assert abs(values.mean() - mean) < 5 * math.sqrt(variance / N)
    assert abs(values.var() - variance) < 0.05 * variance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.half])
def test_uniform_numbers_are_below_one(dtype):
    values = torch.rand(N, dtype=dtype, device="dtorch").cpu().double()
    assert values.min() >= 0 and values.max() < 1
    assert abs(values.mean() - 0.5) < 0.005
    within = empty(dtype).uniform_(5, 5.25).cpu().double()
    assert within.min() >= 5 and within.max() < 5.25
    assert (empty(dtype, 9).uniform_(2, 2) == 2).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half])
def test_small_floats(dtype):
    values = torch.randn(N, dtype=dtype, device="dtorch").cpu().double()
    assert abs(values.mean()) < 0.01 and abs(values.std() - 1) < 0.01
    assert empty(dtype).exponential_(1e4).min() > 0


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers(dtype):
    values = torch.randn(N, dtype=dtype, device="dtorch").cpu()
    parts = torch.view_as_real(values).double()
    assert (parts.var(0) - 0.5).abs().max() < 0.01 and parts.mean(0).abs().max() < 0.01
    assert abs(torch.corrcoef(parts.t())[0, 1]) < 0.02
    uniform = torch.view_as_real(torch.rand(N, dtype=dtype, device="dtorch").cpu())
    assert uniform.min() >= 0 and uniform.max() < 1


INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_cover_their_range(dtype):
    values = torch.randint(0, 5, (2000,), dtype=dtype, device="dtorch").cpu()
    assert values.dtype == dtype and values.unique().tolist() == [0, 1, 2, 3, 4]
    info = torch.iinfo(dtype)
    whole = empty(dtype).random_().cpu()
    assert whole.min() >= 0 and whole.max().item() > 0.9 * info.max
    if dtype.is_signed:
        assert empty(dtype).random_(info.min, None).min().item() < 0.9 * info.min


def test_booleans_and_the_bounds_of_floats():
    flags = empty(torch.bool).random_().cpu()
    assert abs(flags.float().mean() - 0.5) < 0.01
    assert empty(torch.float32).random_().max().item() <= 2**24
    assert empty(torch.bool).bernoulli_(0.0).sum() == 0 and empty(torch.bool).bernoulli_(1.0).all()


def test_neighbours_and_calls_are_independent():
    first, second = (torch.randn(N, device="dtorch").cpu().double() for _ in range(2))
    for lag in range(1, 9):
        assert abs((first[lag:] * first[:-lag]).mean()) < 5 / math.sqrt(N)
    assert abs((first * second).mean()) < 5 / math.sqrt(N)
    torch.manual_seed(3)
    assert abs((torch.randn(N, device="dtorch").cpu() * first).mean()) < 5 / math.sqrt(N)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_dropout_keeps_the_mean(p):
    x = torch.ones(N, device="dtorch", requires_grad=True)
    y = F.dropout(x, p)
    y.sum().backward()
    kept = y.detach().cpu()
    assert abs((kept == 0).float().mean() - p) < 0.005
    assert torch.allclose(kept[kept != 0], torch.tensor(1 / (1 - p) if p < 1 else 0.0))
    assert torch.equal(x.grad.cpu(), kept)


def test_whole_channels_are_dropped():
    y = F.dropout2d(torch.ones(50, 40, 3, 3, device="dtorch"), 0.3).cpu()
    assert torch.equal(y, y[..., :1, :1].expand_as(y))
    assert abs((y == 0).float().mean() - 0.3) < 0.04


def test_attention_drops_weights():
    q = torch.randn(2, 2, 16, 8, device="dtorch")
    torch.manual_seed(4)
    first = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    second = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    torch.manual_seed(4)
    again = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert torch.equal(first.cpu(), again.cpu()) and not torch.equal(first.cpu(), second.cpu())


def test_samples_without_replacement():
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0], device="dtorch").expand(N // 10, 4)
    drawn = torch.multinomial(weights, 3).cpu()
    assert torch.equal(drawn.sort(1).values, torch.tensor([1, 2, 3]).expand_as(drawn))
    first = torch.bincount(drawn[:, 0], minlength=4) / len(drawn)
    assert (first - torch.tensor([0, 1, 2, 5]) / 8).abs().max() < 0.02


def test_permutations():
    order = torch.randperm(10001, device="dtorch").cpu()
    assert torch.equal(order.sort().values, torch.arange(10001))
    assert torch.randperm(0, device="dtorch").numel() == 0
    counts = torch.zeros(4, 4)
    for _ in range(400):
        counts[torch.arange(4), torch.randperm(4, device="dtorch").cpu()] += 1
    assert (counts - 100).abs().max() < 5 * math.sqrt(75)


def test_philox_is_the_published_one():
    """The known answers that come with Random123."""
    from dtorch_mpi import _random

    ones = 0xFFFFFFFF
    assert _random.philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert _random.philox([ones] * 4, [ones] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6,
                                                      0x6D5451FD]
    assert _random.philox([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
                          [0xA4093822, 0x299F31D0]) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420,
                                                        0x24126EA1]


@pytest.mark.parametrize("wrong", [
    lambda x: x.uniform_(2, 1), lambda x: x.normal_(0, -1), lambda x: x.exponential_(0),
    lambda x: x.geometric_(1.5), lambda x: x.log_normal_(0, 0), lambda x: x.cauchy_(0, -1),
    lambda x: x.bernoulli_(1.5), lambda x: x.random_(5, 5), lambda x: x.byte().random_(0, 300),
    lambda x: x.long().normal_(), lambda x: torch.randperm(-1, device=x.device),
    lambda x: torch.multinomial(x, 0), lambda x: F.dropout(x, 1.5),
])  # fmt: skip
def test_errors_are_pytorchs_at_the_users_line(wrong):
    x = torch.ones(3, device="dtorch")
    for right in (lambda: x.uniform_(1, 2), lambda: x.normal_(), lambda: x.random_(1, 5)):
        right()  # a call that is known already is checked no less
    with pytest.raises(Exception) as expected:
        wrong(torch.ones(3))
    with pytest.raises(Exception) as got:
        wrong(x)
    assert str(got.value).splitlines()[0] == str(expected.value).splitlines()[0]
    assert not isinstance(got.value, dt.WorkerError)
