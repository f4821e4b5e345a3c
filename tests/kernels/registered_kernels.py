"""Python kernels of the tests; every rank imports this before dt.init()."""

import threading
import time
from pathlib import Path

import torch

import dtorch_mpi as dt


@dt.python_kernel(
    "kt::axpy(Tensor x, Tensor y, *, float a=1.0) -> Tensor",
    meta=lambda x, y, *, a=1.0: torch.empty_like(x),
    sharding="..., ... -> ...",
    backward=lambda ctx, grad: (grad * ctx.a, grad),
    setup_context=lambda ctx, inputs, keyword_only_inputs, output: setattr(
        ctx, "a", keyword_only_inputs["a"]
    ),
)
def axpy(x, y, *, a=1.0):
    assert x.device.type in ("cpu", "cuda") and type(x) is torch.Tensor
    return a * x + y


@dt.python_kernel(
    "kt::norms(Tensor x, int power) -> (Tensor, Tensor)",
    meta=lambda x, power: (x.new_empty(x.shape[0]), torch.empty_like(x)),
    sharding="a* -> a, a*",
)
def norms(x, power):
    """Of rows."""
    size = x.flatten(1).abs().pow(power).sum(1).pow(1 / power)
    return size, x / size.reshape(-1, *[1] * (x.dim() - 1))


@dt.python_kernel("kt::centred(Tensor x) -> Tensor", meta=lambda x: torch.empty_like(x))
def centred(x):
    """Needs all of x: it has no sharding."""
    return x - x.mean()


@dt.python_kernel("kt::add_(Tensor(a!) x, Tensor[] others) -> ()")
def add_all(x, others):
    for other in others:
        x.add_(other)


@dt.python_kernel("kt::scale_(Tensor(a!) x, float by) -> Tensor(a!)", sharding="... -> ...")
def scale(x, by):
    return x.mul_(by)


@dt.python_kernel(
    "kt::halves(Tensor x) -> Tensor[]",
    meta=lambda x: [x.new_empty(x.shape[0] // 2, *x.shape[1:]) for _ in range(2)],
)
def halves(x):
    half = x.shape[0] // 2
    return [x[:half].clone(), x[half : 2 * half].clone()]


@dt.python_kernel("kt::positive(Tensor x) -> Tensor")
def positive(x):
    """How many there are depends on the data, and there is no meta function."""
    return x[x > 0]


@dt.python_kernel(
    "kt::address(Tensor x) -> Tensor",
    meta=lambda x: x.new_empty(x.shape[0], 2, dtype=torch.int64), sharding="a* -> a_",
)  # fmt: skip
def address(x):
    """Where a worker's part lies in its memory, and in which process and thread it is called."""
    return torch.tensor([[x.data_ptr(), threading.get_native_id()]] * len(x), device=x.device)


# ---- failures -----------------------------------------------------------------------------------


@dt.python_kernel(
    "kt::refuse(Tensor x, int row) -> Tensor",
    meta=lambda x, row: torch.empty_like(x), sharding="a* -> a*",
)  # fmt: skip
def refuse(x, row):
    if (x == row).any():
        raise KeyError(f"row {row} is refused")  # the kernel's own line
    return x.clone()


@dt.python_kernel("kt::fail_inside(Tensor x) -> Tensor", meta=torch.empty_like)
def fail_inside(x):
    return torch.ones(2, 3) @ torch.ones(4)  # PyTorch raises


@dt.python_kernel("kt::fail_in_place(Tensor(a!) x) -> ()")
def fail_in_place(x):
    raise RuntimeError("in place")


@dt.python_kernel(
    "kt::returns(Tensor x, str what) -> Tensor", meta=lambda x, what: torch.empty_like(x)
)
def returns(x, what):
    return {
        "shape": lambda: x[:1].clone(),
        "dtype": lambda: x.double(),
        "argument": lambda: x,
        "view": lambda: x[:],
        "strides": lambda: x.t().contiguous().t().clone(),
        "offset": lambda: torch.cat([x.new_zeros(1, *x.shape[1:]), x])[1:],
        "nothing": lambda: None,
        "two": lambda: (x.clone(), x.clone()),
    }[what]()


@dt.python_kernel("kt::uses_device(Tensor x) -> Tensor", meta=torch.empty_like)
def uses_device(x):
    return x.to("dtorch")  # on a worker


def _refusing_meta(x):
    raise ValueError(f"expected 3 columns, got {x.shape[1]}")


@dt.python_kernel("kt::refused(Tensor x) -> Tensor", meta=_refusing_meta)
def refused(x):
    raise AssertionError("its meta function refuses every call")


# ---- at once ------------------------------------------------------------------------------------


@dt.python_kernel(
    "kt::meet(Tensor x, str folder, int count, bool busy) -> Tensor",
    meta=lambda x, folder, count, busy: torch.empty_like(x), sharding="a -> a",
)  # fmt: skip
def meet(x, folder, count, busy):
    """Each part waits for all others' kernels to be at work: only at once do they go on."""
    (Path(folder) / str(int(x[0]))).touch()
    until = time.monotonic() + 60
    while len(list(Path(folder).iterdir())) < count:
        if time.monotonic() > until:
            raise TimeoutError("the other workers' kernels have not begun")
        if not busy:
            time.sleep(0.002)
    return x + 1


# ---- an alternative -----------------------------------------------------------------------------


def _attention_weights(query, key, is_causal, scale):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    if is_causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~keep, -torch.inf)
    return scores.softmax(-1)


def _save(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(*inputs[:3])
    ctx.is_causal, ctx.scale = inputs[3], keyword_only_inputs["scale"]


def _attention_gradients(ctx, grad):
    return *attention_backward(
        grad.contiguous(), *ctx.saved_tensors, ctx.is_causal, scale=ctx.scale
    ), None


@dt.python_kernel(
    "kt::attention(Tensor query, Tensor key, Tensor value, bool is_causal=False, *, "
    "float? scale=None) -> Tensor",
    meta=lambda query, key, value, is_causal=False, *, scale=None: torch.empty_like(query),
    sharding="bh__, bh__, bh__ -> bh__",
    setup_context=_save, backward=_attention_gradients,
    instead_of="aten::scaled_dot_product_attention",
)  # fmt: skip
def attention(query, key, value, is_causal=False, *, scale=None):
    calls.append(tuple(query.shape))
    return _attention_weights(query, key, is_causal, scale) @ value


@dt.python_kernel(
    "kt::attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, bool is_causal, "
    "*, float? scale) -> (Tensor, Tensor, Tensor)",
    meta=lambda grad, query, key, value, is_causal, *, scale: (
        torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    ),
    sharding="bh__, bh__, bh__, bh__ -> bh__, bh__, bh__",
)  # fmt: skip
def attention_backward(grad, query, key, value, is_causal, *, scale):
    weights = _attention_weights(query, key, is_causal, scale)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    grad_weights = grad @ value.transpose(-2, -1)
    grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdim=True)) * factor
    turned = grad_scores.transpose(-2, -1)
    return grad_scores @ key, turned @ query, weights.transpose(-2, -1) @ grad


calls = []  # shapes that the attention kernel was called with in this process
