"""Every optimizer of torch.optim with every setting of PyTorch's own database, several steps."""

import copy

import pytest
import torch
from layouts import WORKERS, put, read
from torch import nn

pytest.importorskip("expecttest", reason="pip install expecttest: PyTorch's own databases need it")

from torch.testing._internal.common_optimizers import optim_db  # noqa: E402

pytestmark = pytest.mark.timeout(120)
STEPS = 3
OPTIMIZERS = {info.name: info for info in optim_db if not info.only_supports_sparse_grads}
FORMS = {"foreach": {"foreach": True}, "one by one": {"foreach": False}, "fused": {"fused": True}}


def make_model(only_matrices):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(7, 10, bias=not only_matrices), nn.Tanh(),
        nn.Identity() if only_matrices else nn.LayerNorm(10),
        nn.Linear(10, 5, bias=not only_matrices),
    )
    return model


def train(make_optimizer, model, data, settings):
    """(losses, parameters by name) after the steps, on the CPU."""
    optimizer = make_optimizer(model.parameters(), **settings)
    losses = []
    for _ in range(STEPS):

        def closure():
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).detach())
    return read([losses, {n: p for n, p in model.named_parameters()}])


def forms_of(info, settings):
    """The settings for each form that the optimizer has."""
    if "foreach" not in info.supported_impls:
        yield settings
        return
    for form, given in FORMS.items():
        # A fused step takes one learning rate for all, on the tensors' own device.
        if form in ("foreach", "one by one") or "fused" in info.supported_impls:
            if form != "one by one" and isinstance(settings.get("lr"), torch.Tensor):
                continue
            yield settings | given


def cases_of(info, layout):
    """Every setting in every form on one worker; elsewhere each setting in one, in turn."""
    for index, given in enumerate(info.optim_inputs_func(device="cpu")):
        # As many iterations as show what the search does: each of them reads several values.
        kwargs = given.kwargs | ({"max_iter": 4} if info.name == "LBFGS" else {})
        forms = list(forms_of(info, kwargs))
        yield from forms if layout == "one" else [forms[(index + len(layout)) % len(forms)]]


@pytest.mark.parametrize("name", list(OPTIMIZERS))
@pytest.mark.parametrize("layout", list(WORKERS))
def test_an_optimizer(name, layout, on_workers):
    info = OPTIMIZERS[name]
    on_workers(WORKERS[layout])
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(6, 7, generator=generator)
    model = make_model(only_matrices=name == "Muon")
    for settings in cases_of(info, layout):
        mine = put(layout, copy.deepcopy(model))
        found = train(info.optim_cls, mine, put(layout, data), dict(settings))
        expected = train(info.optim_cls, copy.deepcopy(model), data, dict(settings))
        # Muon multiplies in bfloat16, whose sums depend on their order.
        atol = 5e-3 if name == "Muon" and layout != "one" else 1e-4
        torch.testing.assert_close(
            found, expected, rtol=1e-4, atol=atol, msg=lambda text, s=settings: f"{s}: {text}"
        )
