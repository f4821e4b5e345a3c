"""Generating with a sequence that grows: after a few tokens nothing has to be worked out."""

import sys
from pathlib import Path

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi import Replicate, Shard

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from gpt import GPT, GPTConfig  # noqa: E402

NUM_TOKENS = 30
PLAN = {
    "*.attention.qkv.*": [Replicate(), Shard(0)], "*.attention.out.weight": [Replicate(), Shard(1)],
    "*.up.*": [Replicate(), Shard(0)], "*.down.weight": [Replicate(), Shard(1)],
}  # fmt: skip


def misses():
    return dt.debug.counters()["misses"]


def growing(model, ids):
    """Each token's misses, and the tokens, of a model that is given the whole sequence anew."""
    missed = []
    with torch.no_grad():
        for _ in range(NUM_TOKENS):
            before = misses()
            best = model(ids)[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, best], 1)
            missed.append(misses() - before)
    return missed, ids.cpu()


@pytest.mark.parametrize("layout", ["one", "mesh"])
def test_without_a_cache(layout, on_workers):
    config = GPTConfig(layers=2, width=64, heads=4, block=64)
    torch.manual_seed(0)
    model = GPT(config).eval()
    ids = torch.randint(0, 256, (4, 4))
    expected = growing(model, ids)[1]
    on_workers(4 if layout == "mesh" else 1)
    model = model.to("dtorch")
    if layout == "mesh":
        mesh = dt.init_device_mesh((2, 2))
        dt.distribute_module(model, mesh, PLAN)
        ids = dt.distribute_tensor(ids, mesh, [Shard(0), Replicate()])
    else:
        ids = ids.to("dtorch")
    missed, made = growing(model, ids)
    assert sum(missed[3:]) == 0, missed
    assert made.tolist() == expected.tolist()


@pytest.mark.parametrize("layout", ["one", "mesh"])
def test_with_a_cache_of_keys_and_values(layout, on_workers):
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    config = transformers.GPT2Config(
        vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=1,
        eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(3, 256, (4, 5))
    seen = []

    class Watch(transformers.StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            seen.append(misses())
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    options = {"max_new_tokens": NUM_TOKENS, "min_new_tokens": NUM_TOKENS, "do_sample": False}
    expected = model.generate(ids, **options)
    on_workers(4 if layout == "mesh" else 1)
    model = model.to("dtorch")
    if layout == "mesh":
        mesh = dt.init_device_mesh((2, 2))
        dt.distribute_module(model, mesh, {})
        ids = dt.distribute_tensor(ids, mesh, [Shard(0), Replicate()])
    else:
        ids = ids.to("dtorch")
    made = model.generate(ids, stopping_criteria=[Watch()], **options)
    missed = [b - a for a, b in zip(seen, seen[1:], strict=False)]
    assert sum(missed[2:]) == 0, missed
    assert made.tolist() == expected.tolist()
