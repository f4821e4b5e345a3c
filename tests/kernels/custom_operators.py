"""Operators made by PyTorch's own means, with nothing of dtorch_mpi; every rank imports this."""

import numpy as np
import torch
from torch import Tensor


@torch.library.custom_op("kc::sine", mutates_args=())
def sine(x: Tensor) -> Tensor:
    return torch.from_numpy(np.sin(x.numpy()))  # not on the client: there it has no memory


@sine.register_fake
def _(x):
    return torch.empty_like(x)


sine.register_autograd(
    lambda ctx, grad: grad * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@torch.library.custom_op("kc::shift_", mutates_args={"x", "count"})
def shift_in_place(x: Tensor, count: Tensor, by: float) -> None:
    x.numpy()[:] += by
    count += 1


@torch.library.custom_op("kc::count_positive", mutates_args=())
def count_positive(x: Tensor) -> Tensor:
    return torch.tensor((x.numpy() > 0).sum())  # without a fake


@torch.library.custom_op("kc::positive", mutates_args=())
def positive(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy()[x.numpy() > 0])


@positive.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op("kc::weighted", mutates_args=())
def weighted(tensors: list[Tensor], weights: list[float], bias: Tensor | None = None) -> Tensor:
    total = sum(t.numpy() * np.float32(w) for t, w in zip(tensors, weights, strict=True))
    return torch.from_numpy(total if bias is None else total + bias.numpy())


@weighted.register_fake
def _(tensors, weights, bias=None):
    return torch.empty_like(tensors[0])


@torch.library.custom_op("kc::both", mutates_args=())
def both(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(x.numpy().min(-1)), torch.from_numpy(x.numpy().max(-1))


@both.register_fake
def _(x):
    return x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1])


# One kernel for each kind of device.
@torch.library.custom_op("kc::kind", mutates_args=(), device_types="cpu")
def kind(x: Tensor) -> Tensor:
    return torch.full_like(x, 1.0)


@kind.register_kernel("cuda")
def _(x):
    return torch.full_like(x, 1.0)


@kind.register_fake
def _(x):
    return torch.empty_like(x)


# No results, no writes: only its effect.
seen = []


@torch.library.custom_op("kc::look", mutates_args=())
def look(x: Tensor, limit: float) -> None:
    if x.numpy().max() > limit:
        raise OverflowError(f"{x.numpy().max():g} is above {limit:g}")
    seen.append(x.numpy().sum())


# Keyword tensors, which custom_op does not take.
library = torch.library.Library("kc", "FRAGMENT")
library.define("lerp(Tensor start, *, Tensor end, Tensor? weight=None) -> Tensor")
library.define("lerp_out(Tensor start, *, Tensor end, Tensor(a!) out) -> Tensor(a!)")


@torch.library.impl(library, "lerp", "CompositeExplicitAutograd")
def _(start, *, end, weight=None):
    weight = np.float32(0.5) if weight is None else weight.numpy()
    return torch.from_numpy(start.numpy() + weight * (end.numpy() - start.numpy()))


@torch.library.register_fake("kc::lerp", lib=library)
def _(start, *, end, weight=None):
    return torch.empty_like(start)


@torch.library.impl(library, "lerp_out", "CompositeExplicitAutograd")
def _(start, *, end, out):
    out.numpy()[:] = (start.numpy() + end.numpy()) / 2
    return out


@torch.library.register_fake("kc::lerp_out", lib=library)
def _(start, *, end, out):
    return out
