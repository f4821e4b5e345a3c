"""nn.Module and torch.nn.functional, forward and backward, with the CPU's weights."""

import copy

import pytest
import torch
import torch.nn.functional as F
from parity import check, on, same, same_with_gradients, seeded
from torch import nn


def same_module(module, *inputs, **tolerances):
    """Outputs, gradients of inputs and parameters, and buffers afterwards, as on the CPU."""

    def run(module, inputs):
        output = module(*inputs)
        tensors = [
            t for t in torch.utils._pytree.tree_leaves(output) if t is not None and t.requires_grad
        ]
        if tensors:
            sum(
                (t.float() * torch.linspace(0, 1, t.shape[-1], device=t.device)).sum()
                for t in tensors
            ).backward()
        gradients = [t.grad for t in inputs if isinstance(t, torch.Tensor)]
        return (
            output,
            gradients,
            {n: p.grad for n, p in module.named_parameters()},
            dict(module.named_buffers()),
        )

    module.zero_grad()
    twin = copy.deepcopy(module).to("dtorch")
    expected = run(module, on("cpu", inputs))
    check(expected, run(twin, on("dtorch", inputs)), **tolerances)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (nn.Linear(6, 4), seeded(3, 6, grad=True)),
        lambda: (nn.Bilinear(3, 4, 2), seeded(5, 3, grad=True), seeded(5, 4, grad=True)),
        lambda: (nn.Conv1d(3, 4, 3, padding=1), seeded(2, 3, 8, grad=True)),
        lambda: (nn.Conv2d(3, 4, 3, stride=2), seeded(2, 3, 8, 8, grad=True)),
        lambda: (
            nn.Conv2d(4, 4, 3, groups=2, dilation=2, bias=False),
            seeded(2, 4, 8, 8, grad=True),
        ),
        lambda: (
            nn.Conv2d(3, 4, 3, padding="same", padding_mode="reflect"),
            seeded(2, 3, 8, 8, grad=True),
        ),
        lambda: (nn.Conv3d(2, 3, 2), seeded(1, 2, 4, 4, 4, grad=True)),
        lambda: (nn.ConvTranspose2d(3, 2, 3, stride=2), seeded(2, 3, 4, 4, grad=True)),
        lambda: (nn.BatchNorm1d(4), seeded(6, 4, grad=True)),
        lambda: (nn.BatchNorm2d(3), seeded(4, 3, 5, 5, grad=True)),
        lambda: (nn.BatchNorm2d(3).eval(), seeded(4, 3, 5, 5, grad=True)),
        lambda: (nn.BatchNorm2d(3, track_running_stats=False), seeded(4, 3, 5, 5, grad=True)),
        lambda: (nn.InstanceNorm2d(3, affine=True), seeded(4, 3, 5, 5, grad=True)),
        lambda: (nn.LayerNorm(6), seeded(3, 6, grad=True)),
        lambda: (nn.RMSNorm(6), seeded(3, 6, grad=True)),
        lambda: (nn.GroupNorm(2, 4), seeded(3, 4, 5, grad=True)),
        lambda: (nn.LocalResponseNorm(2), seeded(3, 4, 5, grad=True)),
        lambda: (nn.Embedding(10, 3, padding_idx=0), torch.tensor([[1, 2, 0], [3, 1, 9]])),
        lambda: (
            nn.Embedding(10, 3, scale_grad_by_freq=True),
            torch.tensor([[1, 2, 0], [3, 1, 9]]),
        ),
        lambda: (nn.EmbeddingBag(10, 3), torch.tensor([[1, 2], [3, 1]])),
        lambda: (nn.MaxPool2d(2), seeded(2, 3, 6, 6, grad=True)),
        lambda: (nn.AvgPool2d(2), seeded(2, 3, 6, 6, grad=True)),
        lambda: (nn.AdaptiveAvgPool2d((2, 3)), seeded(2, 3, 6, 6, grad=True)),
        lambda: (nn.AdaptiveMaxPool1d(3), seeded(2, 3, 7, grad=True)),
        lambda: (nn.Upsample(scale_factor=2, mode="bilinear"), seeded(2, 3, 4, 4, grad=True)),
        lambda: (nn.PixelShuffle(2), seeded(2, 4, 3, 3, grad=True)),
        lambda: (nn.GELU(), seeded(4, 4, grad=True)),
        lambda: (nn.SiLU(), seeded(4, 4, grad=True)),
        lambda: (nn.PReLU(), seeded(4, 4, grad=True)),
        lambda: (nn.GLU(), seeded(4, 4, grad=True)),
        lambda: (nn.Softplus(), seeded(4, 4, grad=True)),
        lambda: (nn.LogSoftmax(1), seeded(4, 4, grad=True)),
        lambda: (nn.Unfold(2), seeded(1, 2, 4, 4, grad=True)),
        lambda: (nn.Flatten(), seeded(2, 3, 4, grad=True)),
        lambda: (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), seeded(2, 4, grad=True)),
        lambda: (nn.Dropout(0.5).eval(), seeded(4, 4, grad=True)),
        lambda: (
            nn.Sequential(
                nn.Conv2d(3, 8, 3),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(72, 5),
            ),
            seeded(4, 3, 8, 8, grad=True),
        ),
    ],
)
def test_module(make):
    module, *inputs = make()
    same_module(module, *inputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: F.mse_loss(x, y),
        lambda x, y: F.l1_loss(x, y),
        lambda x, y: F.smooth_l1_loss(x, y),
        lambda x, y: F.huber_loss(x, y),
        lambda x, y: F.cross_entropy(x, y.argmax(1)),
        lambda x, y: F.cross_entropy(x, y.softmax(1), label_smoothing=0.1),
        lambda x, y: F.cross_entropy(x, y.argmax(1), weight=y[0].abs(), ignore_index=0),
        lambda x, y: F.nll_loss(x.log_softmax(1), y.argmax(1), reduction="sum"),
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
        lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
        lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(5, device=x.device)),
        lambda x, y: F.triplet_margin_loss(x, y, x.flip(0)),
        lambda x, y: F.cosine_similarity(x, y),
        lambda x, y: F.ctc_loss(
            x.unsqueeze(1).log_softmax(2),
            torch.tensor([[1, 2]], device=x.device),
            torch.tensor([5]),
            torch.tensor([2]),
        ),
        lambda x, y: F.multi_margin_loss(x, y.argmax(1)),
        lambda x, y: F.gaussian_nll_loss(x, y, y.abs()),
    ],
)
def test_loss(loss):
    same_with_gradients(
        lambda x, y: loss(x, y.detach()),
        seeded(5, 4, grad=True),
        seeded(5, 4, seed=1),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "batch_first": True}, {"bidirectional": True, "bias": False}]
)
def test_recurrent(kind, options):
    same_module(kind(4, 5, **options), seeded(6, 3, 4, grad=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_recurrent_cell(cell):
    same_module(cell(4, 5), seeded(3, 4, grad=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_with_state_and_packing(kind):
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = kind(4, 5)

        def forward(self, x, state):
            packed = nn.utils.rnn.pack_padded_sequence(x, [6, 4, 1])
            state = (state, state) if kind is nn.LSTM else state
            output, state = self.inner(packed, state)
            return nn.utils.rnn.pad_packed_sequence(output)[0], state

    same_module(
        Packed(), seeded(6, 3, 4, grad=True), seeded(1, 3, 5, grad=True), rtol=1e-4, atol=1e-5
    )


PADDING = torch.tensor([[False, False, False, True], [False, True, True, True], [False] * 4])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder(training, norm_first):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(
                8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first
            )
            self.inner = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)

        def forward(self, x, padding):
            y = self.inner(x, src_key_padding_mask=padding)
            return y.masked_fill(padding.unsqueeze(-1), 0)

    module = Encoder().train(training)
    same_module(module, seeded(3, 4, 8, grad=True), PADDING, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        same_module(module, seeded(3, 4, 8), PADDING, rtol=1e-4, atol=1e-5)


def test_transformer():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

        def forward(self, x, y):
            mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1], device=y.device)
            return self.inner(x, y, tgt_mask=mask, tgt_is_causal=True)

    same_module(
        Whole(), seeded(3, 4, 8, grad=True), seeded(3, 5, 8, grad=True), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention(need_weights):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x, padding):
            return self.inner(x, x, x, key_padding_mask=padding, need_weights=need_weights)

    for training in (True, False):
        same_module(
            Attention().train(training), seeded(3, 4, 8, grad=True), PADDING, rtol=1e-4, atol=1e-5
        )


Q, K, V = (seeded(2, 3, 5, 8, grad=True, seed=i) for i in range(3))


@pytest.mark.parametrize(
    "attend",
    [
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.1),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, torch.ones(5, 5, device=q.device).tril() > 0
        ),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, torch.ones(5, 5, device=q.device).tril()
        ),
        lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :, :3], v[:, :, :3]),
        lambda q, k, v: F.scaled_dot_product_attention(q[0], k[0], v[0]),
        lambda q, k, v: F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        ),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v[..., :4]),
    ],
)
def test_attention(attend):
    same_with_gradients(attend, Q, K, V, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "attend",
    [
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k[:, :, :3], v[:, :, :3], is_causal=True
        ),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k.repeat(1, 1, 16, 1), v.repeat(1, 1, 16, 1), torch.eye(5, 80, device=q.device)
        ),
    ],
)
def test_attention_in_bfloat16(attend):
    inputs = [x.detach().bfloat16().requires_grad_() for x in (Q, K, V)]
    same_with_gradients(attend, *inputs, rtol=3e-2, atol=3e-2)


def test_attention_in_double_precision():
    inputs = [x.detach().double().requires_grad_() for x in (Q, K, V)]
    same_with_gradients(F.scaled_dot_product_attention, *inputs)


def test_attention_bias_has_a_gradient():
    same_with_gradients(
        lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v, bias),
        Q,
        K,
        V,
        seeded(5, 5, grad=True),
        rtol=1e-4,
        atol=1e-5,
    )


def test_attention_with_dropout():
    q, k, v = on("dtorch", (Q, K, V))
    torch.manual_seed(1)
    first = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    torch.manual_seed(1)
    second = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    assert torch.equal(first, second)
    assert not torch.allclose(first, F.scaled_dot_product_attention(q, k, v))
    first.sum().backward()
    assert q.grad.isfinite().all()


def test_attention_is_one_operator():
    import dtorch_mpi as dt

    q, k, v = on("dtorch", (Q, K, V))
    before = dt.debug.counters()["operators"]
    F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert dt.debug.counters()["operators"] - before <= 2


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    "kind", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout]
)
def test_dropout(kind, p):
    torch.manual_seed(2)
    x = torch.ones(10, 20, 3, 3, device="dtorch", requires_grad=True)
    y = kind(p)(x)
    y.sum().backward()
    expected = torch.ones(10, 20, 3, 3)
    if p == 0.0:
        check(expected, y.detach())
    if kind is nn.Dropout:
        assert y.detach().unique().tolist() == {0.0: [1.0], 0.5: [0.0, 2.0], 1.0: [0.0]}[p]
        check(y.detach().cpu(), x.grad)


def test_module_conversions():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    assert model.dtorch()[0].weight.device.type == "dtorch"
    assert next(model.double().parameters()).dtype == torch.float64
    assert next(model.to("dtorch", torch.bfloat16).parameters()).dtype == torch.bfloat16
    assert next(model.cpu().parameters()).device.type == "cpu"


def test_modules_under_more_workers(several_workers):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 4))
    same_module(model, seeded(5, 6, grad=True), rtol=1e-4, atol=1e-5)


def test_data_parallel_names_are_not_needed():
    same(lambda x: F.normalize(F.interpolate(x, scale_factor=2)), seeded(1, 2, 3, 3))
