"""Failures on workers. Runs in any job: test_failure_jobs.py starts it with other workers."""

import copy
import gc
import inspect
import os
import pickle
import socket

import pytest
import torch
import torch.nn.functional as F
from worker_kernels import fail_on

import dtorch_mpi as dt


def next_line():
    return inspect.currentframe().f_back.f_lineno + 1


def failure_of(tensor):
    with pytest.raises(dt.WorkerError) as caught:
        tensor.to_torch()
    return caught.value


def assert_names(error, line, operator, worker=None):
    assert error.site.startswith(f"{os.path.abspath(__file__)}:{line} in "), error.site
    assert operator in error.operator
    assert error.host == socket.gethostname()
    assert 0 <= error.worker < dt.num_workers() if worker is None else error.worker == worker
    assert error.rank in (None, error.worker + 1)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.site == error.site and again.rank == error.rank
    for part in (error.site, error.operator, error.reason, error.host, f"worker {error.worker}"):
        assert part in str(error)


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    gc.collect()
    dt.sync()  # a failure that a test has not read would show here
    assert torch.equal((torch.ones(2, device="dtorch") + 1).to_torch(), torch.full((2,), 2.0))


# ---- the error surfaces where the value is read ------------------------------------------------


@pytest.mark.asserts_on_device
def test_index_out_of_range():
    weight = torch.randn(5, 3, device="dtorch")
    index = torch.tensor([1, 7], device="dtorch")
    line = next_line()
    rows = F.embedding(index, weight)
    error = failure_of(((rows * 2) + 1).relu())
    assert_names(error, line, "embedding(Float[5, 3], Long[2])")
    assert "out of range" in error.reason


def test_singular_inverse():
    matrix = torch.zeros(3, 3, device="dtorch")
    line = next_line()
    inverse = torch.linalg.inv(matrix)
    error = failure_of((inverse @ matrix).sum() + 1)
    assert_names(error, line, "linalg")
    assert "singular" in error.reason


def test_operator_without_an_output():
    matrix = -torch.eye(3, device="dtorch")
    line = next_line()
    factor = torch.linalg.cholesky(matrix)
    error = failure_of((factor * 2).t() + 1)
    assert_names(error, line, "_linalg_check_errors")
    assert "linalg.cholesky" in error.reason and "positive-definite" in error.reason


def test_failure_in_a_helper_of_the_user():
    def helper(x):
        return torch.linalg.inv(x)

    line = inspect.getsourcelines(helper)[1] + 1
    error = failure_of(helper(torch.zeros(2, 2, device="dtorch")))
    assert_names(error, line, "linalg")
    assert "helper" in error.site


def test_failure_in_backward_names_the_backward():
    x = torch.randn(5, 3, device="dtorch", requires_grad=True)
    index = torch.zeros(2, 3, dtype=torch.int64, device="dtorch")
    loss = x.gather(0, index).sum()
    index.data.fill_(99)  # unseen by autograd: the gradient's scatter fails
    line = next_line()
    loss.backward()
    error = failure_of(x.grad)
    assert_names(error, line, "scatter_add")
    assert torch.isfinite(loss.to_torch())


def test_read_of_any_kind_raises():
    def bad():
        return torch.linalg.inv(torch.zeros(2, 2, device="dtorch"))

    for read in (lambda x: x.sum().item(), lambda x: x.cpu(), repr, lambda x: bool(x.sum() > 0),
                 torch.nonzero, dt.local_shards, lambda x: x.to_torch_async().get()):
        with pytest.raises(RuntimeError, match="singular"):
            read(bad())


def test_reading_again_raises_again():
    bad = torch.linalg.inv(torch.zeros(2, 2, device="dtorch"))
    assert str(failure_of(bad)) == str(failure_of(bad))
    future = bad.to_torch_async()
    for _ in range(2):
        with pytest.raises(dt.WorkerError, match="singular"):
            future.get()


def test_the_first_of_several_failures_is_told_and_the_others_later():
    line = next_line()
    first = torch.linalg.inv(torch.zeros(2, 2, device="dtorch"))
    later = torch.linalg.inv(torch.zeros(3, 3, device="dtorch"))
    assert_names(failure_of(later[:2, :2] + first), line, "linalg")
    with pytest.raises(dt.WorkerError) as caught:
        dt.sync()
    assert f":{line + 1} in" in caught.value.site


# ---- poison ------------------------------------------------------------------------------------


def test_what_depends_on_it_fails_and_the_rest_goes_on():
    good = torch.randn(3, 3)
    other = good.to("dtorch")
    bad = torch.linalg.inv(torch.zeros(3, 3, device="dtorch"))
    dependents = [bad + 1, torch.stack([other, bad]), other @ bad, bad[0], bad.t()]
    unrelated = (other @ other).relu()
    torch.testing.assert_close(unrelated.to_torch(), (good @ good).relu())
    for dependent in dependents:
        assert "singular" in failure_of(dependent).reason
    torch.testing.assert_close(unrelated.to_torch(), (good @ good).relu())


def test_failed_write_takes_the_base_and_its_views():
    base = torch.zeros(6, 2, device="dtorch")
    before, other = base[1:], torch.ones(6, 2, device="dtorch")
    clone = base.clone()
    line = next_line()
    base[2:5].index_fill_(0, torch.tensor([99], device="dtorch"), 1.0)
    for tensor in (base, before, base[0], before.t()):
        assert_names(failure_of(tensor), line, "index_fill_")
    assert torch.equal(clone.to_torch(), torch.zeros(6, 2))
    assert torch.equal(other.to_torch(), torch.ones(6, 2))
    before.add_(1)
    failure_of(base)


def test_write_of_a_failed_value_takes_the_base():
    base = torch.zeros(3, 3, device="dtorch")
    base[0].copy_(torch.linalg.inv(torch.zeros(3, 3, device="dtorch"))[0])
    assert "singular" in failure_of(base).reason


@pytest.mark.asserts_on_device
@pytest.mark.parametrize("sharded", [False, True])
def test_what_is_written_over_whole_has_a_value_again(sharded):
    mesh = dt.init_device_mesh((dt.num_workers(),))

    def placed(tensor):
        return dt.distribute_tensor(tensor, mesh, [dt.Shard(0)]) if sharded else tensor.to("dtorch")

    values, bad = torch.randn(7, 3), torch.tensor([0, 70])
    for write in (
        lambda t: t.copy_(placed(values)),
        lambda t: t.copy_(values),
        lambda t: t.copy_(dt.distribute_tensor(values.t().contiguous(), mesh).t()),
        lambda t: t.fill_(2).mul_(0).add_(placed(values)),
        lambda t: t.normal_().copy_(values),
        lambda t: torch._foreach_copy_([t], [placed(values)]),
        lambda t: (torch._foreach_zero_([t]), t.add_(placed(values))),
    ):
        target = placed(torch.zeros(7, 3))
        view = target[1:]
        rows = F.embedding(bad.to("dtorch"), placed(torch.ones(7, 3)))
        target.add_(rows.sum())
        for tensor in (target, view):
            assert "out of range" in failure_of(tensor).reason
        write(target)
        assert torch.equal(target.to_torch(), values)
        assert torch.equal(view.to_torch(), values[1:])


def test_what_is_not_written_over_whole_stays_without_a_value():
    failed = torch.linalg.inv(torch.zeros(3, 3, device="dtorch"))
    for write in (
        lambda t: t[0].zero_(),
        lambda t: t.add_(0),
        lambda t: t.copy_(t.t()),
        lambda t: t.copy_(failed),
        lambda t: torch._foreach_copy_([t], [t.t()]),
    ):
        target = torch.zeros(3, 3, device="dtorch")
        target.add_(failed)
        write(target)
        assert "singular" in failure_of(target).reason


@pytest.mark.asserts_on_device
def test_model_goes_on_from_a_checkpoint_after_a_failed_step():
    mesh = dt.init_device_mesh((dt.num_workers(),))
    model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 4)).to("dtorch")
    dt.distribute_module(model, mesh, {"*": [dt.Shard(0)]})
    optimizer = torch.optim.Adam(model.parameters())

    def step(tokens):
        optimizer.zero_grad()
        loss = model(torch.tensor(tokens, device="dtorch")).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    step([1, 2])
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    expected = [step([3, 4]).item() for _ in range(4)]
    step([1, 99])
    assert "out of range" in failure_of(model[1].weight).reason
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert [step([3, 4]).item() for _ in range(4)] == expected


def test_memory_of_a_failed_write_is_freed():
    dt.sync()
    before = torch.dtorch.worker_memory()
    for _ in range(5):
        base = torch.zeros(250_000, device="dtorch")
        base.index_fill_(0, torch.tensor([-7_000_000], device="dtorch"), 1.0)
        failure_of(base)
        del base
    gc.collect()
    after = torch.dtorch.worker_memory()
    assert [w["bytes"] for w in after] == [w["bytes"] for w in before]


# ---- no error is ever lost ---------------------------------------------------------------------


def test_unread_failure_is_told_at_the_next_sync_once():
    kept = torch.linalg.inv(torch.zeros(2, 2, device="dtorch"))
    with pytest.raises(dt.WorkerError, match="singular"):
        dt.sync()
    dt.sync()
    failure_of(kept)


def test_lost_output_is_told_at_the_next_read():
    good = torch.ones(2, device="dtorch")
    line = next_line()
    torch.linalg.inv(torch.zeros(2, 2, device="dtorch"))
    gc.collect()
    assert_names(failure_of(good), line, "linalg")
    assert torch.equal(good.to_torch(), torch.ones(2))


def test_failure_in_a_dropped_future_is_told():
    torch.linalg.inv(torch.zeros(2, 2, device="dtorch")).to_torch_async()
    gc.collect()
    with pytest.raises(dt.WorkerError, match="singular"):
        dt.sync()


def test_many_failures_are_told_or_counted():
    bad = torch.zeros(2, 2, device="dtorch")
    for _ in range(1200):
        torch.linalg.inv(bad)
    told = []
    while True:
        try:
            dt.sync()
            break
        except dt.WorkerError as error:
            told.append(error.reason)
    assert all("singular" in reason for reason in told)
    assert len(told) <= 1000 and "200 more operators failed" in told[-1]


# ---- Python kernels ----------------------------------------------------------------------------


def test_python_kernel_that_raises():
    error = failure_of(fail_on(0) + 1)
    assert "ValueError" in error.reason and "told to fail" in error.reason
    assert "tests.fail_on" in error.operator + error.reason
    assert error.worker == 0


def test_python_kernel_names_the_line():
    # The innermost line that is neither PyTorch's nor ours: that of the test's own helper.
    site = failure_of(fail_on(0)).site
    assert "worker_kernels.py:" in site and site.endswith(" in fail_on"), site


@pytest.mark.parametrize("failing", [0, -1], ids=["first", "last"])
def test_failure_on_one_worker_reaches_every_value_that_needs_it(failing):
    failing %= dt.num_workers()
    mesh = dt.init_device_mesh((dt.num_workers(),))
    rows = fail_on(failing)
    assert failure_of(rows).worker == failing
    whole = rows.redistribute(mesh, [dt.Replicate()])
    again = (whole * 2).redistribute(mesh, [dt.Shard(1)]).redistribute(mesh, [dt.Partial()])
    summed = again.redistribute(mesh, [dt.Replicate()]).sum()
    for value in (whole, again, summed):
        assert failure_of(value).worker == failing
    # No worker is left waiting, and none has lost its place in the stream.
    good = fail_on(-1).redistribute(mesh, [dt.Replicate()])
    assert good[:, 0].to_torch().tolist() == list(range(dt.num_workers()))


def test_failure_before_a_write_across_placements():
    mesh = dt.init_device_mesh((dt.num_workers(),))
    target = dt.distribute_tensor(torch.zeros(dt.num_workers(), 2), mesh, [dt.Shard(0)])
    target.copy_(fail_on(dt.num_workers() - 1))
    assert failure_of(target).worker == dt.num_workers() - 1
    target = dt.distribute_tensor(torch.zeros(dt.num_workers(), 2), mesh, [dt.Shard(0)])
    target.copy_(fail_on(-1))
    assert target[:, 1].to_torch().tolist() == list(range(dt.num_workers()))


def test_unread_failure_on_one_worker_is_told():
    fail_on(dt.num_workers() - 1)
    gc.collect()
    with pytest.raises(dt.WorkerError, match="told to fail"):
        dt.sync()


# ---- at once -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [
    lambda d: torch.ones(2, 3, device=d) @ torch.ones(4, 5, device=d),
    lambda d: torch.ones(2, 3, device=d) + torch.ones(2, 4, device=d),
    lambda d: torch.ones(2, 3, device=d).view(7),
    lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(2, 4, device=d)]),
    lambda d: torch.ones(3, device=d)[5],
    lambda d: F.linear(torch.ones(2, 3, device=d), torch.ones(4, 5, device=d)),
    lambda d: torch.ones(2, device=d).mm(torch.ones(2, 2, device=d)),
    lambda d: torch.ones(3, dtype=torch.int64, device=d).mean(),
], ids=["matmul", "add", "view", "cat", "index", "linear", "mm", "mean"])  # fmt: skip
def test_wrong_shapes_and_types_raise_at_once_with_pytorchs_text(wrong):
    with pytest.raises(Exception) as expected:
        wrong("cpu")
    with pytest.raises(Exception) as caught:
        wrong("dtorch")
    assert type(caught.value) is type(expected.value)
    assert str(caught.value) == str(expected.value)


def test_workers_go_on_after_failures():
    x = torch.ones(4, 4, device="dtorch")
    bad = torch.linalg.inv(torch.zeros(4, 4, device="dtorch"))
    failure_of(bad)
    for _ in range(1000):
        x = x + 1
    assert x.sum().item() == 16 * 1001
