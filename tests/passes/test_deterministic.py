"""With torch.use_deterministic_algorithms() no pass makes a sum in another order."""

import pytest
import torch
import torch.nn.functional as F
from repeated import REWRITTEN, TIMES, settle

import dtorch_mpi as dt
from dtorch_mpi import Replicate, Shard


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def losses():
    """Of a small training with rows to reduce, until long after it is rewritten."""
    torch.manual_seed(0)
    mesh = dt.init_device_mesh((dt.num_workers(),))
    linear, last = torch.nn.Linear(64, 500), torch.nn.Linear(500, 500)
    model = torch.nn.Sequential(linear, torch.nn.Softmax(-1), last, torch.nn.Softmax(-1))
    dt.distribute_module(model.to("dtorch"), mesh, {})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x = dt.distribute_tensor(torch.randn(210, 64), mesh, [Shard(0)])
    found = []
    for step in range(2 * TIMES):
        if step == REWRITTEN:
            settle(kernels=True)
        weights = model(x) * 3
        total = weights.t() @ weights
        whole = total.redistribute(mesh, [Replicate()]).redistribute(mesh, [Shard(0)])
        loss = F.mse_loss(whole, torch.ones(500, 500, device="dtorch")) * 1e3
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found, [stages for stages in dt.debug.graph() if "fusion" in stages]


def test_the_same_bits_before_and_after(deterministic):
    runs = []
    for passes in ("none", "all"):
        dt.shutdown()
        dt.init(workers=3, passes=passes)
        found, windows = losses()
        runs.append(found)
    assert runs[0] == runs[1]
    text = max((window["early_collectives"] for window in windows), key=len)
    assert "_foreach_add_" in text and "fused_rows" not in text
    dt.shutdown()


def test_else_rows_are_fused():
    dt.shutdown()
    dt.init(workers=3)
    _, windows = losses()
    assert any("fused_rows" in window["fusion"] for window in windows)
    dt.shutdown()
