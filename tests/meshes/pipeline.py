"""A pipeline of two stages, written as a plain loop. Says how long both were at work at once."""

import sys

import torch

import dtorch_mpi as dt

MICRO_BATCHES, ROWS, WIDTH = 8, 64, 256


def stages():
    torch.manual_seed(0)
    return [
        torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(6))) for _ in range(2)
    ]


def data():
    torch.manual_seed(1)
    return torch.randn(MICRO_BATCHES, ROWS, WIDTH)


def train(first, second, to_second, batches, steps):
    optimizers = [torch.optim.SGD(stage.parameters(), lr=0.05) for stage in (first, second)]
    losses = []
    for _ in range(steps):
        # Each stage runs its own operators in the program's order: all forward passes come first.
        total = sum(second(to_second(first(batch))).square().mean() for batch in batches)
        total = total / len(batches)
        total.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(total.detach())
    return losses


def busy(events, worker):
    """[(begin, end)] of a worker's operators."""
    return sorted(
        (e["ts"], e["ts"] + e["dur"]) for e in events
        if e["ph"] == "X" and e["pid"] == 2 + worker and e["cat"] == "operator"
    )


def shared(one, other):
    both, at = 0.0, 0
    for begin, end in one:
        while at < len(other) and other[at][1] <= begin:
            at += 1
        for other_begin, other_end in other[at:]:
            if other_begin >= end:
                break
            both += min(end, other_end) - max(begin, other_begin)
    return both


def main():
    dt.init()
    mesh = dt.init_device_mesh((2,), mesh_dim_names=("pp",))
    meshes = [mesh["pp", 0], mesh["pp", 1]]
    first, second = (
        dt.distribute_module(stage.to("dtorch"), m, {})
        for stage, m in zip(stages(), meshes, strict=True)
    )
    batches = [dt.distribute_tensor(batch, meshes[0]) for batch in data()]
    losses = train(first, second, lambda x: x.to_mesh(meshes[1]), batches, 3)
    losses = [loss.item() for loss in losses]
    expected = [loss.item() for loss in train(*stages(), lambda x: x, data(), 3)]
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-6)
    best = 0.0
    for _ in range(5):  # ranks may have to take turns on few cores
        with dt.profile() as profile:
            train(first, second, lambda x: x.to_mesh(meshes[1]), batches, 1)
            dt.sync()
        work = [busy(profile.events(), worker) for worker in range(2)]
        total = [sum(end - begin for begin, end in events) for events in work]
        best = max(best, shared(*work) / min(total))
    print(f"overlap={best:.3f}")


if __name__ == "__main__":
    sys.exit(main())
