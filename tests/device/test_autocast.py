"""Autocast gives the dtypes that it gives on the device that the workers have."""

import contextlib
import os

import pytest
import torch
import torch.nn.functional as F
from parity import check, on, seeded
from torch import nn

ORACLE = "cuda" if os.environ["DTORCH_DEVICE"] == "gpu" else "cpu"
# The simulated GPU computes with the CPU's kernels, of which these take no such numbers.
LACKS = {("softmax", torch.float16), ("log_softmax", torch.float16), ("rfft", torch.float16),
         ("rfft", torch.bfloat16)} if "SIMULATED_GPUS" in os.environ else set()  # fmt: skip
X = seeded(4, 4, grad=True)
IMAGE = seeded(2, 3, 6, 6)

BODIES = {
    "matmul": lambda x, i: x @ x,
    "linear": lambda x, i: F.linear(x, x, x[0]),
    "mv": lambda x, i: torch.mv(x, x[0]),
    "bmm": lambda x, i: torch.bmm(x[None], x[None]),
    "addmm": lambda x, i: torch.addmm(x, x, x),
    "baddbmm": lambda x, i: torch.baddbmm(x[None], x[None], x[None]),
    "einsum": lambda x, i: torch.einsum("ij,jk", x, x),
    "conv2d": lambda x, i: F.conv2d(i, i[:, :, :3, :3]),
    "conv_transpose": lambda x, i: F.conv_transpose2d(i, i[:1].expand(3, 3, 6, 6)),
    "softmax": lambda x, i: (x @ x).softmax(1),
    "log_softmax": lambda x, i: (x @ x).log_softmax(1),
    "layer_norm": lambda x, i: F.layer_norm(x @ x, (4,)),
    "group_norm": lambda x, i: F.group_norm(F.conv2d(i, i[:, :, :3, :3]), 1),
    "batch_norm": lambda x, i: F.batch_norm(i.bfloat16(), None, None, training=True),
    "sum": lambda x, i: (x @ x).sum(),
    "mean": lambda x, i: (x @ x).mean(),
    "exp": lambda x, i: (x @ x).exp(),
    "pow": lambda x, i: (x @ x).pow(2),
    "norm": lambda x, i: (x @ x).norm(),
    "prod": lambda x, i: (x @ x).prod(0),
    "cumsum": lambda x, i: (x @ x).cumsum(0),
    "add": lambda x, i: x @ x + x,
    "relu": lambda x, i: (x @ x).relu(),
    "gelu": lambda x, i: F.gelu(x @ x),
    "silu": lambda x, i: F.silu(x @ x),
    "cat": lambda x, i: torch.cat([x @ x, x]),
    "stack": lambda x, i: torch.stack([x @ x, x]),
    "cross_entropy": lambda x, i: F.cross_entropy(x @ x, torch.arange(4, device=x.device)),
    "mse": lambda x, i: F.mse_loss(x @ x, x),
    "l1": lambda x, i: F.l1_loss(x @ x, x),
    "bce": lambda x, i: F.binary_cross_entropy_with_logits(x @ x, x.sigmoid()),
    "attention": lambda x, i: F.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None]
    ),
    "interpolate": lambda x, i: F.interpolate(
        F.conv2d(i, i[:, :, :3, :3]), scale_factor=2, mode="bilinear"
    ),
    "max_pool": lambda x, i: F.max_pool2d(F.conv2d(i, i[:, :, :3, :3]), 2),
    "avg_pool": lambda x, i: F.avg_pool2d(F.conv2d(i, i[:, :, :3, :3]), 2),
    "cdist": lambda x, i: torch.cdist(x @ x, x @ x),
    "index_copy": lambda x, i: x.index_copy(0, torch.tensor([0], device=x.device), x[:1]),
    "prelu": lambda x, i: F.prelu(x, x[0, :1]),
    "embedding": lambda x, i: F.embedding(torch.tensor([1], device=x.device), x),
    "in place": lambda x, i: (x @ x).add_(x),
    "cosine": lambda x, i: F.cosine_similarity(x @ x, x),
    "trace": lambda x, i: (x @ x).trace(),
    "chain": lambda x, i: torch.linalg.multi_dot([x, x, x]),
    "inverse": lambda x, i: torch.linalg.inv(x @ x.T + torch.eye(4, device=x.device)),
    "rfft": lambda x, i: torch.fft.rfft(x @ x),
}


@contextlib.contextmanager
def autocast(device, dtype=None):
    """torch.autocast, which looks for a real GPU first."""
    if device != "cuda" or torch.cuda.is_available():
        with torch.autocast(device, dtype):
            yield
        return
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    torch.autocast_increment_nesting()
    yield
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()
    torch.set_autocast_enabled("cuda", before[0])
    torch.set_autocast_dtype("cuda", before[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", BODIES)
def test_dtype_and_value(name, dtype):
    if (name, dtype) in LACKS:
        pytest.skip("the simulated GPU's kernel does not take the dtype")
    results = []
    for device in (ORACLE, "dtorch"):
        x, image = on(device, (X, IMAGE))
        with autocast(device, dtype):
            y = BODIES[name](x, image)
        # In a process with this device PyTorch has no gradients on GPUs: its issue 161129.
        if y.requires_grad and ORACLE == "cpu":
            (y.abs() if y.is_complex() else y).float().sum().backward()
        results.append((y, x.grad))
    check(on("cpu", results[0]), results[1], rtol=2e-2, atol=2e-2)


def test_default_dtype_and_switches():
    assert torch.get_autocast_dtype("dtorch") == torch.get_autocast_dtype(ORACLE)
    assert not torch.is_autocast_enabled("dtorch")
    x = on("dtorch", X)
    with torch.autocast("dtorch"):
        assert torch.is_autocast_enabled("dtorch")
        assert (x @ x).dtype == torch.get_autocast_dtype("dtorch")
        with torch.autocast("dtorch", enabled=False):
            assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu"):
        assert (x @ x).dtype == torch.float32
    assert torch.amp.is_autocast_available("dtorch")


def test_workers_that_start_within_autocast():
    import dtorch_mpi as dt

    dt.shutdown()
    with torch.autocast("dtorch", torch.float16):
        x = torch.ones(2, 2, device="dtorch")
        assert (x @ x).dtype == torch.float16
    dt.shutdown()
    before = torch.get_autocast_dtype("dtorch")
    torch.set_autocast_dtype("dtorch", torch.float16)
    try:
        dt.init()
        assert torch.get_autocast_dtype("dtorch") == torch.float16
    finally:
        torch.set_autocast_dtype("dtorch", before)


@pytest.mark.parametrize(
    "module",
    [
        lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4)),
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 4)),
            nn.Conv1d(1, 3, 3),
            nn.BatchNorm1d(3),
            nn.Flatten(),
            nn.Linear(6, 4),
        ),
    ],
)
def test_training_step(module):
    results = []
    for device in ("cpu", "dtorch"):
        torch.manual_seed(0)
        model = module().to(device)
        x = X.detach().to(device)
        with torch.autocast(device, torch.bfloat16):
            y = model(x)
        y.float().pow(2).sum().backward()
        results.append((y, [p.grad for p in model.parameters()]))
    check(*results, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent(kind):
    results = []
    for device in ("cpu", "dtorch"):
        torch.manual_seed(0)
        model = kind(4, 4).to(device)
        with torch.autocast(device, torch.bfloat16):
            y, state = model(X.detach().to(device)[None])
        results.append((y.float(), state))
    check([results[0][0]], [results[1][0]], rtol=5e-2, atol=5e-2)


def test_weights_are_cast_once():
    import dtorch_mpi as dt

    model = nn.Linear(4, 4).to("dtorch")
    x = torch.ones(2, 4, device="dtorch")
    with torch.autocast("dtorch", torch.bfloat16):
        model(x)
        before = dt.debug.counters()["operators"]
        model(x)
        assert dt.debug.counters()["operators"] - before <= 3  # the input's cast, the view, addmm
