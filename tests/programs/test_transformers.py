"""Models of the transformers library, written for one device: a step and generate(), placed."""

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi import Replicate, Shard

pytest.importorskip("transformers", reason="pip install transformers: it is not installed")

from transformer_models import CASES, tokens  # noqa: E402

pytestmark = pytest.mark.timeout(120)
NAMES = list(CASES)


def place(layout):
    """(workers, function that places a model and a batch) of a layout."""
    if layout == "one":
        return 1, lambda model, batch, plan: (
            model.to("dtorch"), {k: v.to("dtorch") for k, v in batch.items()}
        )

    def placed(model, batch, plan):
        if layout == "data":
            mesh, plan, rows = dt.init_device_mesh((4,)), {}, [Shard(0)]
        else:
            mesh, rows = dt.init_device_mesh((2, 2)), [Shard(0), Replicate()]
        model = dt.distribute_module(model.to("dtorch"), mesh, plan)
        return model, {k: dt.distribute_tensor(v, mesh, rows) for k, v in batch.items()}

    return 4, placed


def step(model, batch):
    """(loss, gradients by name, parameters after a step by name), on the CPU."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(**batch).loss
    loss.backward()
    grads = {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
    optimizer.step()
    return loss.detach().cpu(), grads, {n: p.detach().cpu() for n, p in model.named_parameters()}


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", ["one", "data", "tensor"])
def test_a_training_step(name, layout, on_workers):
    case = CASES[name]
    expected = step(case.make(), case.batch())
    workers, placed = place(layout)
    on_workers(workers)
    found = step(*placed(case.make(), case.batch(), case.plan))
    close(found[0], expected[0])
    assert found[1].keys() == expected[1].keys()
    for part in (1, 2):
        for key, value in expected[part].items():
            close(found[part][key], value)


def generate(model, ids):
    model.eval()
    return model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False).cpu()


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].generates])
@pytest.mark.parametrize("layout", ["one", "data", "tensor"])
def test_generate(name, layout, on_workers):
    case = CASES[name]
    ids = tokens(3, 5, 4)
    expected = generate(case.make(), ids)
    workers, placed = place(layout)
    on_workers(workers)
    model, batch = placed(case.make(), {"ids": ids}, case.plan)
    assert torch.equal(generate(model, batch["ids"]), expected)
