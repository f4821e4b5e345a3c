"""Training steps of a small GPT on simulated workers: right values, and what is moved."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from shard_tracer import ShardTracer
from simulate import make_mesh
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

R, S0, S1 = Replicate(), Shard(0), Shard(1)
WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 16, 4, 12, 6, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        # By head first, so that a column of heads is a column of the weight.
        qkv = self.qkv(self.norm1(x)).view(batch, length, HEADS, 3, WIDTH // HEADS)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(3))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        return self.head(self.norm(self.blocks(x)))


def replicated(name):
    return R


def fully_sharded(name):
    return S0


def tensor_parallel(name):
    if "qkv" in name or "fc1" in name:
        return S0
    return S1 if name.endswith(("proj.weight", "fc2.weight")) else R


def train(mesh, layout, batch_layout, foreach, steps=2, batch=BATCH, hooks=True):
    torch.manual_seed(0)
    model = GPT().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=foreach,
                                  fused=foreach is None)
    tracer = ShardTracer(mesh)
    for name, parameter in model.named_parameters():
        tracer.place(parameter, layout(name))
    if hooks:
        tracer.lay_gradients(model, layout)
    for _ in range(steps):
        tokens = torch.randint(0, VOCABULARY, (batch, LENGTH + 1))
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        tracer.place(x, batch_layout)
        tracer.place(y, batch_layout)
        with tracer:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    for name, parameter in model.named_parameters():
        assert tracer.laid[parameter].placements == tuple(layout(name))
    return tracer


def moved(tracer, axis, before, after):
    """The operators that had an input moved so on an axis, and how often."""
    return Counter(
        (move.op, move.sizes)
        for move in tracer.moves
        if move.before[axis] != move.after[axis]
        and isinstance(move.before[axis], before)
        and isinstance(move.after[axis], after)
    )


# The three forms of the optimizer: over lists, one tensor at a time, fused.
CASES = pytest.mark.parametrize(
    "workers,foreach", [(2, True), (3, False), (2, None)], ids=["list", "one", "fused"]
)


@CASES
def test_data_parallel(workers, foreach):
    tracer = train(make_mesh(workers), lambda name: [R], [S0], foreach)
    assert not tracer.fallbacks
    # Gradients are summed once each, and the loss's weight; nothing else moves.
    reduced = moved(tracer, 0, Partial, Replicate)
    assert sum(reduced.values()) == len(tracer.moves)
    assert sum(reduced.values()) == 2 * (len(list(GPT().parameters())) + 1)


@CASES
def test_fully_sharded(workers, foreach):
    tracer = train(make_mesh(workers), lambda name: [S0], [S0], foreach)
    parameters = {tuple(p.shape) for p in GPT().parameters()}
    parameters |= {shape[::-1] for shape in parameters}
    for op, sizes in moved(tracer, 0, Shard, Replicate):
        assert sizes in parameters, f"{op} gathers {sizes}, which is no weight"
    # Gradients come to the parameter's owner without being whole anywhere.
    for op, sizes in moved(tracer, 0, Partial, Replicate):
        # Each worker finds its own rows of the table of positions; what they found is added up.
        assert len(sizes) == 0 or (op, sizes) == ("aten.add.Tensor", (LENGTH, WIDTH)), (
            f"{op} sums {sizes} on every worker"
        )
    scattered = moved(tracer, 0, Partial, Shard)
    assert not moved(tracer, 0, Shard, Shard)
    assert sum(scattered.values()) == 2 * len(list(GPT().parameters()))


def test_tensor_parallel():
    mesh = make_mesh(2, 2)
    tracer = train(mesh, lambda name: [R, tensor_parallel(name)], [S0, R], True)
    assert not tracer.fallbacks
    # In each of two steps and one block, two activations are summed forward and two
    # gradients backward along the tensor axis, and besides only norms.
    summed = moved(tracer, 1, Partial, Replicate)
    assert sum(count for (_, sizes), count in summed.items() if len(sizes) == 3) == 2 * 4
    assert all(len(sizes) in (0, 3) for _, sizes in summed)
    assert not moved(tracer, 1, Shard, (Shard, Replicate))


def test_fully_sharded_with_tensor_parallel():
    def layout(name):
        return [S0, tensor_parallel(name)]

    train(make_mesh(2, 2), layout, [S0, R], True)


@pytest.mark.parametrize("placement", [R, S0], ids=str)
def test_without_gradient_hooks(placement):
    train(make_mesh(2), lambda name: [placement], [S0], True, hooks=False)


def test_an_uneven_batch():
    train(make_mesh(3), lambda name: [S0], [S0], True, batch=7)
