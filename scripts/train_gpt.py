"""Train a byte-level GPT, data parallel over every worker of the job.

    mpirun -n 3 python scripts/train_gpt.py out/corpus.h5      # a controller and two workers
    python scripts/train_gpt.py out/corpus.h5                  # one process, one worker thread
    python scripts/train_gpt.py out/corpus.h5 --device cpu     # plain PyTorch on the same data

The corpus comes from scripts/prepare_corpus.py. Writes metrics.json, loss.png and sample.txt.
"""

import argparse
import json
import math
import sys
import time
from collections import deque
from itertools import islice
from pathlib import Path

import torch
from gpt import GPT, GPTConfig, generate
from matplotlib.figure import Figure
from torch.nn import functional as F

import dtorch_mpi as dt
from dtorch_mpi.data import H5Dataset

STEPS_IN_FLIGHT = 4
"""How many steps later a loss is read, so that reading it never waits for the step just issued."""


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("corpus", help="HDF5 file made by scripts/prepare_corpus.py")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--device", choices=["dtorch", "cpu"], default="dtorch",
                        help="cpu: plain PyTorch in this process")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=16, help="sequences a step, over all workers")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--block", type=int, default=128, help="bytes of context, as in the corpus")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--warmup", type=int, default=50, help="steps of linear warm-up")
    parser.add_argument("--eval-batches", type=int, default=40, help="batches of held-out text")
    parser.add_argument("--sample-bytes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def learning_rate_factor(step, warmup, steps):
    """Linear warm-up, then a cosine down to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def loss_of(model, batch):
    """Mean loss in nats per byte of a batch of shape (sequences, block + 1)."""
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def read_later(loss):
    """Start reading a loss; return a function that gives the number."""
    if loss.device.type == "dtorch":
        future = loss.detach().to_torch_async()
        return lambda: future.get().item()
    value = loss.item()
    return lambda: value


def train(model, batches, arguments):
    """Run the training loop; return the loss of each step and the seconds it took."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=arguments.lr, betas=(0.9, 0.95), weight_decay=0.1
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, arguments.warmup, arguments.steps)
    )
    losses, pending = [], deque()
    began = time.perf_counter()

    def read_oldest():
        losses.append(pending.popleft()())
        rate = len(losses) * arguments.batch * arguments.block / (time.perf_counter() - began)
        progress.set_postfix_str(f"loss {losses[-1]:.3f}, {rate:,.0f} tokens/s", refresh=False)
        progress.update()

    with dt.progress(total=arguments.steps, desc="training", unit="step") as progress:
        for batch in islice(batches, arguments.steps):
            loss = loss_of(model, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            pending.append(read_later(loss))
            if len(pending) > STEPS_IN_FLIGHT:
                read_oldest()
        while pending:
            read_oldest()
    return losses, time.perf_counter() - began


@torch.no_grad()
def evaluate(model, batches):
    """Mean loss in nats per byte over batches of equal size."""
    model.eval()
    values = [read_later(loss_of(model, batch)) for batch in batches]
    model.train()
    return sum(value() for value in values) / len(values)


def plot_losses(path, losses, held_out):
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(losses) + 1), losses, linewidth=1, label="training")
    axes.axhline(held_out, color="tab:orange", label=f"held out, at the end: {held_out:.3f}")
    axes.set(xlabel="step", ylabel="loss in nats per byte")
    axes.legend()
    figure.savefig(path, dpi=120)


def main():
    arguments = parse_arguments()
    if arguments.device == "dtorch":
        dt.init()
        mesh = dt.init_device_mesh((dt.num_workers(),), mesh_dim_names=("dp",))
        where = {"mesh": mesh, "placements": [dt.Shard(0)]}
    else:
        where = {"device": "cpu"}

    training = H5Dataset(arguments.corpus, "train")
    held_out = H5Dataset(arguments.corpus, "held_out")
    if training.shape[1:] != (arguments.block + 1,):
        sys.exit(f"train_gpt.py: {arguments.corpus} has rows of shape {training.shape[1:]}, "
                 f"--block {arguments.block} needs ({arguments.block + 1},): prepare the corpus "
                 "with the same --block")

    torch.manual_seed(arguments.seed)
    model = GPT(GPTConfig(
        block=arguments.block, layers=arguments.layers, heads=arguments.heads,
        width=arguments.width, dropout=arguments.dropout,
    )).to(arguments.device)
    if arguments.device == "dtorch":
        dt.distribute_module(model, mesh, {})

    sent_before = bytes_sent(arguments.device)
    losses, seconds = train(
        model, training.batches(arguments.batch, seed=arguments.seed, epochs=None, **where),
        arguments,
    )
    sent = bytes_sent(arguments.device) - sent_before
    held_out_batches = held_out.batches(arguments.batch, seed=0, **where)
    held_out_loss = evaluate(model, islice(held_out_batches, arguments.eval_batches))
    prompt = torch.tensor([list(b"def ")], device=arguments.device)
    sampled = generate(model, prompt, arguments.sample_bytes, temperature=0.8, top_k=40)
    text = bytes(sampled[0].tolist()).decode("utf-8", errors="replace")

    arguments.out.mkdir(parents=True, exist_ok=True)
    plot_losses(arguments.out / "loss.png", losses, held_out_loss)
    (arguments.out / "sample.txt").write_text(text, encoding="utf-8")
    metrics = {
        "device": arguments.device,
        "workers": dt.num_workers() if arguments.device == "dtorch" else None,
        "parameters": sum(p.numel() for p in model.parameters()),
        "losses": losses,
        "held_out_loss": held_out_loss,
        "seconds": seconds,
        "tokens_per_second": len(losses) * arguments.batch * arguments.block / seconds,
        "training_bytes_sent": sent,
        "torch": torch.__version__,
        "options": {name: str(value) if isinstance(value, Path) else value
                    for name, value in vars(arguments).items()},
    }
    (arguments.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")

    print(f"\nsampled text:\n{text}\n")
    print(f"{len(losses)} steps in {seconds:.1f} s, {metrics['tokens_per_second']:,.0f} tokens/s; "
          f"training loss {losses[-1]:.3f}, held-out loss {held_out_loss:.3f} nats per byte; "
          f"training data sent by rank 0: {sent} bytes; results in {arguments.out}")


def bytes_sent(device):
    """Tensor bytes that rank 0 has sent to workers so far."""
    return dt.debug.counters()["upload_bytes"] if device == "dtorch" else 0


if __name__ == "__main__":
    main()
