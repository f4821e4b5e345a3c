"""Measure what calls cost that were not seen before: the first step, new sizes, growing sequences.

    python scripts/bench_sharding_cost.py [--generate]

A 2 x 2 mesh of worker threads in one process. Prints a line `name=value unit` for each figure, and
the target where there is one. `--generate` adds transformers' GPT-2 with its cache of keys and
values.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import dtorch_mpi as dt
from dtorch_mpi import Replicate, Shard

sys.path.insert(0, str(Path(__file__).parent))

from gpt import GPT, GPTConfig  # noqa: E402

PLAN = {
    "*.attention.qkv.*": [Replicate(), Shard(0)], "*.attention.out.weight": [Replicate(), Shard(1)],
    "*.up.*": [Replicate(), Shard(0)], "*.down.weight": [Replicate(), Shard(1)],
}  # fmt: skip
ROWS = [Shard(0), Replicate()]


def report(name, value, unit, target=None):
    missed = "" if target is None or value <= target else ", MISSED"
    goal = "" if target is None else f"  (at most {target:g}{missed})"
    print(f"{name}={value:.4g} {unit}{goal}", flush=True)


def misses():
    return dt.debug.counters()["misses"]


def decisions():
    """Sharding decisions made so far."""
    return dt.debug.counters()["decisions"]


def training(mesh):
    """The first steps of a GPT: seconds, and calls whose outputs had to be worked out."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=4, width=256, heads=8, block=64)).to("dtorch")
    dt.distribute_module(model, mesh, PLAN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    taken, missed = [], []
    for step in range(4):
        tokens = torch.randint(0, 256, (8, 65), generator=torch.Generator().manual_seed(step))
        inputs = dt.distribute_tensor(tokens[:, :-1].contiguous(), mesh, ROWS)
        targets = dt.distribute_tensor(tokens[:, 1:].contiguous(), mesh, ROWS)
        before, begin = misses(), time.perf_counter()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        taken.append(time.perf_counter() - begin)
        missed.append(misses() - before)
    report("training.first_over_second", taken[0] - taken[1], "s", 3)
    report("training.second_step", taken[1], "s")
    report("training.misses_first_step", missed[0], "calls")
    report("training.misses_second_step", missed[1], "calls", 0)


def per_token(name, token, count=50):
    """Misses and time of each of `count` tokens, `token(i)` making one."""
    missed, decided, taken = [], [], []
    for index in range(count):
        before, sharded, begin = misses(), decisions(), time.perf_counter()
        token(index)
        missed.append(misses() - before)
        decided.append(decisions() - sharded)
        taken.append(time.perf_counter() - begin)
    report(f"{name}.misses_after_third", sum(missed[3:]), "calls")
    report(f"{name}.misses_a_token_after_third", statistics.median(missed[3:]), "calls")
    report(f"{name}.decisions_after_third", sum(decided[3:]), "decisions", 0)
    report(f"{name}.token", statistics.median(taken[3:]) * 1e3, "ms")


def growing(mesh):
    """A GPT without a cache: each token is a longer sequence."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=4, width=64, heads=4, block=64)).to("dtorch").eval()
    dt.distribute_module(model, mesh, PLAN)
    ids = [dt.distribute_tensor(torch.randint(0, 256, (4, 4)), mesh, ROWS)]

    @torch.no_grad()
    def token(_):
        best = model(ids[0])[:, -1].argmax(-1, keepdim=True)
        ids[0] = torch.cat([ids[0], best], 1)
        ids[0][0, 0].item()

    per_token("growing", token)


def transformers_generate(mesh):
    """transformers' GPT-2 and its generate(), with the cache of keys and values."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=256, n_embd=64, n_layer=4, n_head=4, n_positions=128, bos_token_id=1,
        eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).to("dtorch").eval()
    dt.distribute_module(model, mesh, {})
    ids = dt.distribute_tensor(torch.randint(3, 256, (4, 5)), mesh, ROWS)
    marks = []

    class Watch(transformers.StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            marks.append((misses(), decisions(), time.perf_counter()))
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    model.generate(ids, max_new_tokens=50, min_new_tokens=50, do_sample=False,
                   stopping_criteria=[Watch()])
    steps = [tuple(b - a for a, b in zip(*pair, strict=True))
             for pair in zip(marks, marks[1:], strict=False)][3:]
    report("gpt2_cache.misses_after_third", sum(step[0] for step in steps), "calls")
    report("gpt2_cache.misses_a_token_after_third",
           statistics.median(step[0] for step in steps), "calls")
    report("gpt2_cache.decisions_after_third", sum(step[1] for step in steps), "decisions", 0)
    report("gpt2_cache.token", statistics.median(step[2] for step in steps) * 1e3, "ms")


def new_sizes(mesh):
    """A new size of an operator and placement that are known, against a size seen before."""
    weight = dt.distribute_tensor(torch.randn(96, 64), mesh, [Replicate(), Shard(0)])
    scale = dt.distribute_tensor(torch.randn(64), mesh)
    table = dt.distribute_tensor(torch.randn(50, 64), mesh)
    operators = {
        "add": lambda x: x + x,
        "gelu": lambda x: F.gelu(x),
        "sum": lambda x: x.sum(-1),
        "transpose": lambda x: x.transpose(0, 1),
        "linear": lambda x: F.linear(x, weight),
        "layer_norm": lambda x: F.layer_norm(x, (64,), scale, scale),
        "softmax": lambda x: x.softmax(-1),
        "embedding": lambda x: F.embedding(x[..., 0].long() % 50, table),
        "cat": lambda x: torch.cat([x, x], 1),
        "view": lambda x: x.view(x.shape[0], x.shape[1], 4, 16),
        "slice": lambda x: x[:, 1:],
        "attention": lambda x: F.scaled_dot_product_attention(
            *(x.unflatten(-1, (4, 16)).transpose(1, 2),) * 3, is_causal=True
        ),
    }  # fmt: skip
    rows = [dt.distribute_tensor(torch.randn(8, length, 64), mesh, ROWS)
            for length in range(2, 34)]
    costs = {}
    with torch.no_grad():
        for name, operator in operators.items():
            for x in rows[:2]:
                operator(x)
            dt.sync()
            taken = []
            for x in rows[2:]:
                # The client thread's own time: on a few cores the workers take turns with it.
                before, begin = misses(), time.thread_time()
                operator(x)
                new = time.thread_time() - begin
                missed = misses() - before
                begin = time.thread_time()
                operator(x)
                taken.append((new - (time.thread_time() - begin)) / max(missed, 1))
                dt.sync()
            costs[name] = statistics.median(taken) * 1e3
            report(f"new_size.{name}", costs[name], "ms", 0.2)
    report("new_size.median", statistics.median(costs.values()), "ms", 0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--generate", action="store_true", help="transformers' GPT-2 too")
    arguments = parser.parse_args()
    dt.init(workers=4)
    mesh = dt.init_device_mesh((2, 2))
    training(mesh)
    growing(mesh)
    new_sizes(mesh)
    if arguments.generate:
        transformers_generate(mesh)


if __name__ == "__main__":
    main()
