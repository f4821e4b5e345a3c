"""Operators of torch.library run on the workers. In any job: test_kernel_jobs.py starts others."""

import os
import warnings

import custom_operators as custom
import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

import dtorch_mpi as dt

pytestmark = pytest.mark.skipif(os.environ["DTORCH_DEVICE"] == "gpu",
                                reason="its operators are NumPy's, for workers on CPUs")
LAYOUTS = [None, (Shard(0),), (Shard(1),), (Replicate(),)]


@pytest.fixture(autouse=True)
def gathering_is_expected():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dt.FallbackWarning)
        yield


@pytest.fixture(params=LAYOUTS, ids=str)
def put(request):
    def put(value):
        if request.param is None:
            return value.to("dtorch")
        mesh = dt.init_device_mesh((dt.num_workers(),))
        layout = request.param if value.dim() > 1 else [Replicate()]
        return dt.distribute_tensor(value, mesh, list(layout))

    return put


def matrix(seed=0):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))


def test_values_and_gradients(put):
    x, there = matrix().requires_grad_(), put(matrix()).requires_grad_()
    for given in x, there:
        (custom.sine(given * 2) * 3).sum().backward()
    torch.testing.assert_close(custom.sine(there).detach().cpu(), x.detach().sin())
    torch.testing.assert_close(there.grad.cpu(), x.grad)


def test_written_arguments(put):
    x, count = matrix(), torch.zeros((), dtype=torch.int64)
    there, counted = put(x), put(count)
    version = there._version
    for given, number in (x, count), (there, counted), (there, counted):
        assert custom.shift_in_place(given, number, 0.5) is None
    torch.testing.assert_close(there.cpu(), x + 0.5)
    assert counted.item() == 2 and there._version == version + 2


def test_without_a_fake(put):
    for seed in range(2):
        x = matrix(seed)
        assert custom.count_positive(put(x)).item() == (x > 0).sum()


def test_a_fake_that_can_not_tell(put):
    for seed in range(3):
        x = matrix(seed)
        made = custom.positive(put(x))
        assert made.shape == x[x > 0].shape
        assert torch.equal(made.cpu(), x[x > 0])


def test_lists_and_optional_tensors(put):
    tensors, weights = [matrix(1), matrix(2)], [0.5, -2.0]
    expected = tensors[0] * 0.5 - tensors[1] * 2
    there = [put(t) for t in tensors]
    torch.testing.assert_close(custom.weighted(there, weights).cpu(), expected)
    made = custom.weighted(there, weights, put(matrix(3)))
    torch.testing.assert_close(made.cpu(), expected + matrix(3))


def test_several_results(put):
    least, most = custom.both(put(matrix()))
    torch.testing.assert_close(least.cpu(), matrix().amin(-1))
    torch.testing.assert_close(most.cpu(), matrix().amax(-1))


def test_kernels_by_kind_of_device(put):
    assert torch.equal(custom.kind(put(matrix())).cpu(), torch.ones(5, 6))


def test_keyword_tensors(put):
    start, end = matrix(1), matrix(2)
    made = torch.ops.kc.lerp(put(start), end=put(end))
    torch.testing.assert_close(made.cpu(), (start + end) / 2)
    made = torch.ops.kc.lerp(put(start), end=put(end), weight=put(torch.full((5, 6), 0.25)))
    torch.testing.assert_close(made.cpu(), torch.lerp(start, end, 0.25))
    out = put(torch.zeros(5, 6))
    assert torch.ops.kc.lerp_out(put(start), end=put(end), out=out) is out
    torch.testing.assert_close(out.cpu(), (start + end) / 2)


def test_no_results(put):
    x = put(torch.ones(5, 6))
    del custom.seen[:]
    assert custom.look(x, 2.0) is None
    dt.sync()
    if dt.runtime.current().first_rank is None:
        assert custom.seen == [30.0] * dt.num_workers()


def test_a_failure_without_results():
    x = torch.full((3,), 5.0, device="dtorch")
    custom.look(x, 2.0)
    with pytest.raises(dt.WorkerError, match="OverflowError: 5 is above 2"):
        dt.sync()
    while True:  # one failure a worker
        try:
            dt.sync()
            break
        except dt.WorkerError:
            pass
    assert torch.equal(x.cpu(), torch.full((3,), 5.0))  # what it looked at is as good as before


def test_a_sharding_of_ones_own():
    mesh = dt.init_device_mesh((dt.num_workers(),))
    x = torch.randn(4 * dt.num_workers(), 3)
    there = dt.distribute_tensor(x, mesh, [Shard(0)])
    dt.register_sharding(custom.both, "a* -> a, a")
    with warnings.catch_warnings():
        warnings.simplefilter("error", dt.FallbackWarning)
        least, most = custom.both(there)
    assert dt.num_workers() == 1 or least.placements == (Shard(0),)
    torch.testing.assert_close(least.cpu(), x.amin(-1))
    torch.testing.assert_close(most.cpu(), x.amax(-1))
