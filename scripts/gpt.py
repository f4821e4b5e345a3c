"""A small GPT over bytes: an ordinary nn.Module that uses public PyTorch only."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(kw_only=True)
class GPTConfig:
    """Sizes of a GPT. Raises ValueError where they do not fit together."""

    vocabulary: int = 256
    block: int = 128
    """Longest context, in tokens."""
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.0
    tied: bool = False
    """Use the token embedding as the head's weight too."""

    def __post_init__(self):
        if self.width % self.heads:
            raise ValueError(
                f"got width {self.width} with {self.heads} heads: width must be a multiple of heads"
            )


class Attention(nn.Module):
    """Causal self-attention with one projection for queries, keys and values."""

    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x):
        # Heads outermost: a qkv weight sharded by rows then holds whole heads.
        heads = self.qkv(x).unflatten(-1, (self.heads, 3, -1))
        q, k, v = (part.transpose(1, 2) for part in heads.unbind(-2))
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention and a four times wider MLP, each behind a LayerNorm and beside a residual."""

    def __init__(self, config):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.mlp_norm(x)))))


class GPT(nn.Module):
    """Token ids of shape (batch, time) to logits of shape (batch, time, vocabulary).

    `time` is at most `config.block`.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.block, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(_initialize)
        # Each block adds twice to the residual stream; keep its variance at depth.
        for block in self.blocks:
            for last in (block.attention.out, block.down):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * config.layers))
        if config.tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.tokens(ids) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _initialize(module):
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


@torch.no_grad()
def generate(model, ids, num_tokens, *, temperature=1.0, top_k=None):
    """Continue each row of `ids`, shape (batch, time), by `num_tokens` sampled tokens.

    Returns ids of shape (batch, time + num_tokens). `top_k` keeps only the likeliest tokens.
    The model is in evaluation mode meanwhile.
    """
    was_training = model.training
    model.eval()
    for _ in range(num_tokens):
        logits = model(ids[:, -model.config.block :])[:, -1] / temperature
        if top_k is not None:
            least = logits.topk(top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], dim=1)
    model.train(was_training)
    return ids
