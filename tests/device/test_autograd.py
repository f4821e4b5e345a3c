"""Autograd: PyTorch's own, on tensors of the device."""

import pytest
import torch
from parity import check, on, same, same_with_gradients, seeded
from torch.utils.checkpoint import checkpoint

X = seeded(4, 3, grad=True)


def test_backward_accumulates():
    def body(x):
        for _ in range(3):
            (x.sigmoid() * x).sum().backward()
        return x.grad

    same(body, X)


def test_second_derivative():
    def body(x):
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        return first, x.grad

    same(body, X)


def test_views_and_in_place_have_gradients():
    def body(x):
        y = x * 2
        y[1] = 0
        y.view(-1)[:2].mul_(x.sum())
        y.t()[0].exp_()
        return y, y[:, 1]

    same_with_gradients(body, X)


def test_hooks():
    def body(x):
        seen = []
        x.register_hook(lambda g: g * 2)
        y = x * 3
        y.retain_grad()
        y.register_hook(lambda g: seen.append(g.sum().item()))
        layer = torch.nn.Linear(3, 2, bias=False)
        layer.weight.data = torch.ones(2, 3).to(x.device)
        layer.register_forward_hook(lambda m, inputs, output: output + 1)
        layer.register_full_backward_hook(lambda m, grads, outputs: (grads[0] * 5,))
        layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
        layer(y).sum().backward()
        return seen, x.grad, y.grad, layer.weight.grad

    same(body, X)


def test_custom_function():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(x)
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * ctx.factor + x * 0, None

    same_with_gradients(lambda x: Scale.apply(x, 3.0), X)


def test_no_grad_and_inference():
    def body(x):
        with torch.no_grad():
            y = x * 2
        with torch.inference_mode():
            z = x * 2
        return y.requires_grad, z.is_inference(), y, z

    same(body, X)


def test_saved_tensor_hooks():
    def body(x):
        packed = []

        def pack(t):
            packed.append(tuple(t.shape))
            return t.cpu()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to(x.device)):
            y = (x.exp() * x).sum()
        y.backward()
        return packed, x.grad

    same(body, X)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    def body(x):
        layer = torch.nn.Linear(3, 3)
        layer.load_state_dict({"weight": torch.eye(3) * 2, "bias": torch.ones(3)})
        layer.to(x.device)
        y = checkpoint(lambda t: layer(t).relu() * t, x, use_reentrant=reentrant)
        y.sum().backward()
        return y, x.grad, layer.weight.grad

    same(body, X)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_draws_the_same_mask_again(reentrant):
    torch.manual_seed(3)
    x = torch.ones(400, device="dtorch", requires_grad=True)
    y = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5), x, use_reentrant=reentrant)
    after = torch.rand(3, device="dtorch")
    y.sum().backward()
    assert 0 < (y == 0).sum().item() < 400
    check(y.detach().cpu(), x.grad)
    torch.manual_seed(3)
    torch.nn.functional.dropout(x, 0.5)
    check(after.cpu(), torch.rand(3, device="dtorch"))


def test_checkpoint_under_autocast():
    x = on("dtorch", X)
    with torch.autocast("dtorch", torch.bfloat16):
        y = checkpoint(lambda t: (t @ t.T).relu(), x, use_reentrant=False)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32


def test_function_transforms():
    def body(x):
        x = x.detach()
        weight = torch.arange(6.0, device=x.device).view(3, 2)

        def f(v):
            return (v @ weight).sin().sum()

        return (
            torch.func.vmap(f)(x),
            torch.func.grad(f)(x[0]),
            torch.func.vmap(torch.func.grad(f))(x),
            torch.func.jvp(f, (x[0],), (x[1],)),
            torch.func.jacrev(lambda v: (v @ weight).cos())(x[0]),
            torch.func.jacfwd(lambda v: (v @ weight).cos())(x[0]),
            torch.func.hessian(f)(x[0]),
            torch.autograd.functional.hessian(f, x[0]),
            torch.autograd.functional.jacobian(f, x[0]),
        )

    same(body, X)


def test_functional_call():
    def body(x):
        layer = torch.nn.Linear(3, 2, device=x.device)
        parameters = {
            "weight": torch.ones(2, 3, device=x.device),
            "bias": torch.zeros(2, device=x.device),
        }
        return torch.func.functional_call(layer, parameters, (x.detach(),))

    same(body, X)


def test_gradcheck():
    x = on("dtorch", seeded(3, 2, dtype=torch.float64, grad=True))
    assert torch.autograd.gradcheck(lambda t: (t.tanh() * t).sum(0), x)


def test_anomaly_mode_names_the_operator():
    x = torch.zeros(2, device="dtorch", requires_grad=True)
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():  # noqa: SIM117
        with pytest.raises(RuntimeError, match="nan"):
            (x.sqrt() * 0).sum().backward()


def test_several_threads_issue():
    import threading

    results = {}

    def work(i):
        x = torch.full((8,), float(i), device="dtorch", requires_grad=True)
        for _ in range(20):
            y = (x * x).sum()
        y.backward()
        results[i] = x.grad.tolist()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: [2.0 * i] * 8 for i in range(4)}
