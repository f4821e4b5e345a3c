"""Python kernels against plain PyTorch. Runs in any job: test_kernel_jobs.py starts others."""

import inspect
import os
import warnings

import pytest
import registered_kernels as kernels
import torch
import torch.nn.functional as F
from torch.distributed.tensor import Partial, Replicate, Shard

import dtorch_mpi as dt


def next_line():
    return inspect.currentframe().f_back.f_lineno + 1


def placed(value, *placements):
    """On a mesh of one axis of all workers."""
    mesh = dt.init_device_mesh((dt.num_workers(),))
    return dt.distribute_tensor(value, mesh, list(placements))


LAYOUTS = [(Shard(0),), (Shard(1),), (Replicate(),), None]
layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=str)


def on_workers(value, layout):
    return value.to("dtorch") if layout is None else placed(value, *layout)


def matrix(rows=7, columns=6, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def same(found, expected):
    torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=1e-6, atol=1e-6)


# ---- values -------------------------------------------------------------------------------------


@layouts
def test_elementwise(layout):
    x, y = matrix(seed=1), matrix(seed=2)
    made = kernels.axpy(on_workers(x, layout), on_workers(y, layout), a=0.25)
    assert made.device.type == "dtorch" and made.shape == x.shape
    same(made, 0.25 * x + y)
    same(torch.ops.kt.axpy(on_workers(x, layout), on_workers(y, layout)), x + y)


@layouts
def test_several_results(layout):
    x = matrix()
    for made, expected in zip(
        kernels.norms(on_workers(x, layout), 3), kernels.norms.function(x, 3), strict=True
    ):
        same(made, expected)


@layouts
def test_without_a_sharding_each_worker_gets_all(layout):
    x = matrix()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dt.FallbackWarning)
        same(kernels.centred(on_workers(x, layout)), x - x.mean())


def test_a_sharding_keeps_parts_apart():
    x = placed(matrix(8), Shard(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error", dt.FallbackWarning)
        made = kernels.axpy(x, x)
        size, unit = kernels.norms(x, 2)
    if dt.num_workers() > 1:
        assert [*made.placements, *size.placements, *unit.placements] == [Shard(0)] * 3


def test_partial_sums_are_reduced_first():
    x = matrix(8)
    made = placed(x, Shard(0)).sum(0)
    assert dt.num_workers() == 1 or made.placements == (Partial("sum"),)
    same(kernels.axpy(made, made), 2 * x.sum(0))


def test_a_worker_without_a_part():
    """A kernel may be wrong on nothing at all: such shards are gathered."""
    if dt.num_workers() < 3:
        pytest.skip("with two workers each has a row")
    x = matrix(dt.num_workers() - 1)
    with pytest.warns(dt.FallbackWarning, match="kt::norms gathers"):
        size, _ = kernels.norms(placed(x, Shard(0)), 2)
    same(size, x.norm(dim=1))


@layouts
def test_writes_to_its_arguments(layout):
    x, y = matrix(seed=1), matrix(seed=2)
    there = on_workers(x, layout)
    version = there._version
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dt.FallbackWarning)
        assert kernels.add_all(there, [on_workers(y, layout), on_workers(y, layout)]) is None
    same(there, x + 2 * y)
    assert kernels.scale(there, 0.5) is there
    same(there, x / 2 + y)
    assert there._version > version


def test_writes_show_in_views():
    x = matrix()
    there = placed(x, Shard(0))
    row, column = there[1], there[:, 2]
    kernels.scale(there, 3.0)
    same(row, 3 * x[1])
    kernels.scale(column, 2.0)
    expected = 3 * x
    expected[:, 2] *= 2
    same(there, expected)


def test_a_list_of_results():
    x = matrix(8)
    for made, expected in zip(kernels.halves(x.to("dtorch")), x.split(4), strict=True):
        same(made, expected)


@layouts
def test_results_whose_shape_depends_on_the_data(layout):
    for seed in range(3):  # as many calls with one key
        x = matrix(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dt.FallbackWarning)
            made = kernels.positive(on_workers(x, layout))
        assert made.shape == x[x > 0].shape
        same(made, x[x > 0])


def test_in_inference_mode_and_without_gradients():
    x = matrix()
    for mode in torch.no_grad, torch.inference_mode:
        with mode():
            same(kernels.axpy(x.to("dtorch"), x.to("dtorch")), 2 * x)


def test_on_plain_tensors_it_is_a_function_of_pytorch():
    x = matrix()
    assert torch.equal(kernels.axpy(x, x, a=2.0), 3 * x)
    torch.library.opcheck(kernels.axpy.op, (x, x), {"a": 2.0})


# ---- memory and threads -------------------------------------------------------------------------


def test_arguments_are_not_copied():
    x = placed(torch.zeros(4 * dt.num_workers()), Shard(0))
    first = kernels.address(x).cpu()
    x += 1
    again = kernels.address(x).cpu()
    assert torch.equal(first, again)
    part = kernels.address(x[: 2 * dt.num_workers()]).cpu()
    if dt.num_workers() == 1:
        assert part[0, 0] == first[0, 0]  # a view's too
    kernels.scale(x, 5.0)  # and the worker's own tensor is what a kernel writes to
    same(x, torch.full((4 * dt.num_workers(),), 5.0))


def test_each_worker_calls_in_a_thread_of_its_own():
    x = placed(torch.zeros(dt.num_workers()), Shard(0))
    assert len(set(kernels.address(x).cpu()[:, 1].tolist())) == dt.num_workers()


def meeting(folder, busy):
    """Each worker's kernel goes on only while all the others' are at work too."""
    folder.mkdir()
    x = placed(torch.arange(float(dt.num_workers())), Shard(0))
    made = kernels.meet(x, str(folder), dt.num_workers(), busy)
    same(made, torch.arange(1.0, dt.num_workers() + 1))


@pytest.mark.parametrize("busy", [False, True], ids=["asleep", "busy"])
def test_kernels_of_all_workers_run_at_once(tmp_path, busy):
    for time in range(2):
        meeting(tmp_path / str(time), busy)


# ---- replayed -----------------------------------------------------------------------------------


def test_in_replayed_plans():
    def program(x, step):
        for _ in range(5):
            x = kernels.axpy(x, x * 0.5, a=0.125 * step)
            size, x = kernels.norms(x, 2)
            x = torch.relu(x) + size[:, None]
            kernels.scale(x, 0.5)
        return x

    for layout in None, (Shard(0),):
        grew = 0
        for step in range(1, 9):
            dt.sync()
            before = dt.debug.counters()["replayed_records"]
            found = program(on_workers(matrix(6), layout), step).cpu()
            grew = dt.debug.counters()["replayed_records"] - before
            same(found, program(matrix(6), step))
        assert grew > 0


def test_calls_are_neither_left_out_nor_joined():
    """A kernel may have effects that nobody reads: passes leave its calls alone."""
    if dt.runtime.current().first_rank is not None:
        pytest.skip("the list is the worker's")
    x = torch.ones(1, 1, 2, 2, device="dtorch")
    del kernels.calls[:]
    for _ in range(6):
        y = x + 1
        kernels.attention(y, y, y)
        kernels.attention(y, y, y)
        dt.sync()
        dt.runtime.current().main.planner.wait()
    assert len(kernels.calls) == 12 * dt.num_workers()


# ---- gradients ----------------------------------------------------------------------------------


@layouts
def test_gradients(layout):
    found = []
    for device in "cpu", "dtorch":
        x, y = matrix(seed=1), matrix(seed=2)
        if device == "dtorch":
            x, y = on_workers(x, layout), on_workers(y, layout)
        x.requires_grad_()
        y.requires_grad_()
        kernels.axpy(x * 2, y, a=0.5).pow(2).sum().backward()
        found.append((x.grad, y.grad))
    for there, expected in zip(found[1], found[0], strict=True):
        same(there, expected)


def test_pytorch_warns_where_there_is_no_gradient():
    x = torch.ones(3, device="dtorch", requires_grad=True)
    with pytest.warns(UserWarning, match="kt::norms: an autograd kernel was not registered"):
        kernels.norms(x[:, None], 2)[0].sum().backward()


# ---- errors -------------------------------------------------------------------------------------


def failure_of(tensor):
    with pytest.raises(dt.WorkerError) as caught:
        tensor.to_torch()
    return caught.value


def test_an_exception_names_both_lines():
    last = 2 * dt.num_workers() - 1
    x = placed(torch.arange(last + 1.0)[:, None].repeat(1, 2), Shard(0))
    line = next_line()
    made = kernels.refuse(x, last)
    error = failure_of(made.relu() + 1)
    assert error.site.startswith(f"{os.path.abspath(__file__)}:{line} in "), error.site
    assert error.operator.startswith("kt::refuse(Float[")
    assert f"KeyError: 'row {last} is refused'" in error.reason
    assert f"{os.path.abspath(kernels.__file__)}:" in error.reason
    assert 'raise KeyError(f"row {row} is refused")  # the kernel\'s own line' in error.reason
    assert error.worker == dt.num_workers() - 1  # the others' rows are fine
    same(kernels.refuse(x, last + 1), x.cpu())


def test_an_exception_of_pytorch_inside_names_the_kernels_line():
    error = failure_of(kernels.fail_inside(torch.ones(2, device="dtorch")))
    assert "torch.ones(2, 3) @ torch.ones(4)  # PyTorch raises" in error.reason
    assert "RuntimeError: " in error.reason


def test_an_exception_in_a_replayed_plan():
    x = torch.zeros(2, 2, device="dtorch")
    for step in range(8):
        y = x + step
        for _ in range(4):
            y = kernels.refuse(y, 6) * 1
        if step == 6:
            assert "row 6 is refused" in failure_of(y).reason
        else:
            same(y, torch.full((2, 2), float(step)))


def test_what_a_failed_kernel_should_have_written_has_no_value():
    x = torch.ones(2, device="dtorch")
    kernels.fail_in_place(x)
    assert "RuntimeError: in place" in failure_of(x).reason


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("shape", "got Float[1, 3], expected Float[4, 3] as the meta function says"),
        ("dtype", "got Double[4, 3], expected Float[4, 3] as the meta function says"),
        ("argument", "shares memory with an argument"),
        ("view", "shares memory with an argument"),
        ("nothing", "got None, expected Float[4, 3]: return a tensor"),
        ("two", ""),
    ],
)
def test_results_that_are_not_what_meta_says(what, reason):
    line = next_line()
    made = kernels.returns(torch.ones(4, 3, device="dtorch"), what)
    error = failure_of(made + 1)
    assert error.site.startswith(f"{os.path.abspath(__file__)}:{line} in ")
    assert error.operator.startswith("kt::returns(Float[4, 3]")
    assert reason in error.reason


@pytest.mark.parametrize("what", ["strides", "offset"])
def test_results_that_lie_otherwise_than_meta_says(what):
    x = matrix(4, 3)
    made = kernels.returns(x.to("dtorch"), what)
    assert made.stride() == (3, 1)
    same(made.view(12), x.view(12))
    same(made.as_strided((2,), (1,), 0), x[0, :2])


def test_a_kernel_that_uses_the_device():
    error = failure_of(kernels.uses_device(torch.ones(2, device="dtorch")))
    assert "a Python kernel used a tensor on the dtorch device" in error.reason
    assert 'x.to("dtorch")  # on a worker' in error.reason


def test_a_meta_function_refuses_at_the_call():
    with pytest.raises(ValueError, match="expected 3 columns, got 2"):
        kernels.refused(torch.ones(2, 2, device="dtorch"))


# ---- an alternative -----------------------------------------------------------------------------


def heads(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 4, 5, 8, generator=generator) for _ in range(3)]


@pytest.mark.parametrize("layout", [(Shard(0),), (Shard(1),), (Shard(2),), None], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(layout, causal):
    found = []
    for device in "cpu", "dtorch":
        given = heads()
        if device == "dtorch":
            given = [on_workers(t, layout) for t in given]
        given = [t.requires_grad_() for t in given]
        with dt.use_kernels(kernels.attention), warnings.catch_warnings():
            warnings.simplefilter("ignore", dt.FallbackWarning)
            made = F.scaled_dot_product_attention(*given, is_causal=causal)
            (made * made).sum().backward()
        found.append([made, *(t.grad for t in given)])
    for there, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(there.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)


def test_the_choice():
    given = [t.to("dtorch") for t in heads()]

    def taken():
        made = F.scaled_dot_product_attention(*given, scale=0.2)
        return made.cpu(), kernels.attention.function(*heads(), scale=0.2)

    same(*taken())
    refused = pytest.raises(ValueError, match="takes no dropout_p, which this call gives as 0.1")
    with refused, dt.use_kernels("kt::attention"):
        F.scaled_dot_product_attention(*given, dropout_p=0.1)
    for mode in torch.no_grad, torch.inference_mode:
        with mode(), dt.use_kernels("kt::attention"):
            same(*taken())
    if dt.runtime.current().first_rank is None:
        del kernels.calls[:]
        with dt.use_kernels("kt::attention"):
            F.scaled_dot_product_attention(*given)
            with dt.use_kernels():
                F.scaled_dot_product_attention(*given)
            with torch.inference_mode():
                F.scaled_dot_product_attention(*given)
        F.scaled_dot_product_attention(*given)
        dt.sync()
        assert len(kernels.calls) == 2 * dt.num_workers()


def test_no_such_choice():
    refused = pytest.raises(ValueError, match="'kt::axpy' is no Python kernel registered with inst")
    with refused, dt.use_kernels(kernels.axpy):
        pass
