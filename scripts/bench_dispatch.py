"""Measure what dispatching costs, against PyTorch's eager mode and its DTensor.

    python scripts/bench_dispatch.py [--quick]

Each figure is a ratio of medians from one run on one machine, A and B measured in turn. It is
printed in a table and again as a line `name=value unit`. The parts that need ranks are started
with mpirun from here; under load from elsewhere the figures mean little. Nothing is rewritten.
"""

import argparse
import os
import statistics
import time

import torch
from figures import FIGURES, finish, in_turn, report, seconds, start_ranks, table

SIZE = 8


def operators(device):
    """(name, function issuing one operator or one small step) on a device."""
    a, b = torch.ones(SIZE, SIZE, device=device), torch.ones(SIZE, SIZE, device=device) / 100
    linear = torch.nn.Linear(SIZE, SIZE).to(device)
    leaf = torch.ones(SIZE, SIZE, device=device, requires_grad=True)
    chain = [a]

    def dependent():
        chain[0] = chain[0] + b

    def forward_backward():
        torch.nn.functional.linear(leaf, linear.weight, linear.bias).sum().backward()

    return [
        ("add", lambda: a + b),
        ("mm", lambda: a @ b),
        ("relu", lambda: a.relu()),
        ("add_chain", dependent),
        ("linear_grad", lambda: torch.nn.functional.linear(leaf, linear.weight, linear.bias)),
        ("forward_backward", forward_backward),
    ]


def executed(dt):
    return [worker["operators"] for worker in torch.dtorch.worker_memory()]


def issue(dt, prefix, rounds):
    """Figure 1: issue time an operator over eager's."""
    targets = {"add": 1.0, "mm": 1.0}
    for (name, ours), (_, eager) in zip(operators("dtorch"), operators("cpu"), strict=True):
        count = 1000 if name != "forward_backward" else 200
        mine, theirs = in_turn(ours, eager, count, rounds, dt.sync)
        report(f"{prefix}.issue.{name}", mine * 1e6, "us")
        report(f"{prefix}.issue.{name}.eager", theirs * 1e6, "us")
        report(f"{prefix}.issue.{name}.ratio", mine / theirs, "x", targets.get(name))


def end_to_end(dt, prefix, rounds, count):
    """Figure 2: operators issued, then one value read; every one of them executed."""
    for index, name in ((0, "add"), (1, "mm"), (3, "add_chain")):
        taken = {"dtorch": [], "cpu": []}
        for _ in range(rounds):
            for device in taken:
                function = operators(device)[index][1]
                value = torch.ones((), device=device)
                seconds(function, 50)
                dt.sync()
                before = executed(dt)
                begin = time.perf_counter()
                for _ in range(count):
                    function()
                (value + 1).item()
                taken[device].append((time.perf_counter() - begin) / count)
                if device == "dtorch":
                    done = min(a - b for a, b in zip(executed(dt), before, strict=True))
                    assert done >= count, f"{count} operators issued, {done} executed"
        mine, theirs = (statistics.median(taken[device]) for device in ("dtorch", "cpu"))
        report(f"{prefix}.end_to_end.{name}", mine * 1e6, "us")
        report(f"{prefix}.end_to_end.{name}.ratio", mine / theirs, "x", 1.37)


def reading(dt, prefix, rounds):
    """Figure 5: the whole way of a small value, from the call to the CPU tensor."""
    tensor = torch.ones(16, 16, device="dtorch")
    times = []
    for _ in range(200 * rounds):
        begin = time.perf_counter()
        tensor.to_torch()
        times.append(time.perf_counter() - begin)
    report(f"{prefix}.read.median", statistics.median(times) * 1e6, "us", 50)
    report(f"{prefix}.read.p90", statistics.quantiles(times, n=10)[8] * 1e6, "us")


def dtensor(dt, rounds, count):
    """Figure 3: the same against torch.distributed.tensor with one rank."""
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    mesh = dist.init_device_mesh("cpu", (1,))
    theirs_a = distribute_tensor(torch.ones(SIZE, SIZE), mesh, [Shard(0)])
    theirs_b = distribute_tensor(torch.ones(SIZE, SIZE), mesh, [Shard(0)])
    own = dt.init_device_mesh((1,))
    ours_a = dt.distribute_tensor(torch.ones(SIZE, SIZE), own, [Shard(0)])
    ours_b = dt.distribute_tensor(torch.ones(SIZE, SIZE), own, [Shard(0)])
    with torch.no_grad():
        for name, ours, theirs in (
            ("add", lambda: ours_a + ours_b, lambda: theirs_a + theirs_b),
            ("mm", lambda: ours_a @ ours_b, lambda: theirs_a @ theirs_b),
        ):
            mine, other = in_turn(ours, theirs, 1000, rounds, dt.sync)
            report(f"dtensor.issue.{name}.times_faster", other / mine, "x", -5)
            taken = ([], [])
            for _ in range(rounds):
                for function, read, times in (
                    (ours, lambda: (ours_a + ours_b).to_torch(), taken[0]),
                    (theirs, lambda: (theirs_a + theirs_b).full_tensor(), taken[1]),
                ):
                    begin = time.perf_counter()
                    for _ in range(count // 4):
                        function()
                    read()
                    times.append(time.perf_counter() - begin)
            mine, other = statistics.median(taken[0]), statistics.median(taken[1])
            report(f"dtensor.end_to_end.{name}.times_faster", other / mine, "x", -5)
    dist.destroy_process_group()


def gpt_step(dt, rounds):
    """Figure 4: a training step of a 4-layer GPT over plain PyTorch with the same threads."""
    from bench_engine import seconds_a_step, trainer

    ours, eager = trainer("dtorch"), trainer("cpu")
    seconds_a_step(ours, 2), seconds_a_step(eager, 2)
    taken = ([], [])
    for _ in range(rounds):
        for steps, times in zip((ours, eager), taken, strict=True):
            times.append(seconds_a_step(steps))
    mine, theirs = statistics.median(taken[0]), statistics.median(taken[1])
    report("gpt.step", mine * 1e3, "ms")
    report("gpt.step.eager", theirs * 1e3, "ms")
    report("gpt.step.ratio", mine / theirs, "x", 1.05)


def sharded(dt, prefix, rounds):
    """Figures 6 and 7: operators on sharded tensors, and rank 0's work for them."""
    from torch.distributed.tensor import Shard

    workers = dt.num_workers()
    mesh = dt.init_device_mesh((workers,))
    a = dt.distribute_tensor(torch.ones(16 * SIZE, SIZE), mesh, [Shard(0)])
    b = dt.distribute_tensor(torch.ones(16 * SIZE, SIZE), mesh, [Shard(0)])
    w = dt.distribute_tensor(torch.ones(SIZE, SIZE), mesh)
    plain_a, plain_b = torch.ones(16 * SIZE, SIZE), torch.ones(16 * SIZE, SIZE)
    plain_w = torch.ones(SIZE, SIZE)
    for name, ours, eager in (
        ("add", lambda: a + b, lambda: plain_a + plain_b),
        ("mm", lambda: a @ w, lambda: plain_a @ plain_w),
    ):
        mine, theirs = in_turn(ours, eager, 1000, rounds, dt.sync)
        target = 1.1 if workers == 2 else None
        report(f"{prefix}.sharded.issue.{name}.ratio", mine / theirs, "x", target)
    count, cpu, over_eager = 20_000, [], []
    for _ in range(rounds):
        eager = seconds(lambda: plain_a + plain_b, count)
        dt.sync()
        before, begin = dt.debug.counters(), time.process_time()
        for _ in range(count):
            a + b  # noqa: B018
        dt.sync()
        cpu.append((time.process_time() - begin) / count)
        over_eager.append(cpu[-1] / eager)
        after = dt.debug.counters()
    sends = (after["sends"] - before["sends"]) / max(1, after["batches"] - before["batches"])
    report(f"{prefix}.rank0_cpu", statistics.median(cpu) * 1e6, "us")
    report(f"{prefix}.rank0_cpu.over_eager", statistics.median(over_eager), "x")
    report(f"{prefix}.sends_per_batch", sends, "messages")


def ranks_part(dt, arguments):
    """What a job under mpirun measures."""
    workers = dt.num_workers()
    prefix = f"mpi{workers}"
    if workers == 1:
        end_to_end(dt, prefix, arguments.rounds, arguments.count)
        reading(dt, prefix, arguments.rounds)
    sharded(dt, prefix, arguments.rounds)


def target_of(name):
    if ".end_to_end." in name and name.endswith(".ratio"):
        return 1.37
    if name.endswith("read.median"):
        return 50
    return 1.1 if name.startswith("mpi2.sharded.") else None


def ranks(workers_counts, repeats, arguments):
    """Medians over jobs of each size, the sizes in turn: a machine's clock drifts in minutes."""
    found = {}
    for _ in range(repeats):
        for workers in workers_counts:
            options = ["--ranks", "--rounds", str(arguments.rounds)]
            options += ["--count", str(arguments.count)]
            for name, value, unit in start_ranks(__file__, workers + 1, *options):
                found.setdefault((name, unit), []).append(float(value))
    for (name, unit), values in found.items():
        report(name, statistics.median(values), unit, target_of(name))


def flatness(workers_counts):
    """Figure 7. CPU time is taken over eager's of the same round: the clock is not ours to fix."""
    values = {name: value for name, value, _, _ in FIGURES}
    for what, counts in (("rank0_cpu.over_eager", workers_counts[:3]),
                         ("sends_per_batch", workers_counts)):
        found = [values[f"mpi{n}.{what}"] for n in counts if f"mpi{n}.{what}" in values]
        report(f"flat.{what}", max(found) / min(found), "x", 1.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no job of 16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=100_000, help="operators end to end")
    parser.add_argument("--only", default="", help="part names: issue,end,read,dtensor,gpt,mpi")
    parser.add_argument("--ranks", action="store_true",
                        help="only what a job that a launcher has started measures of itself")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.count = 3, 20_000
    import dtorch_mpi as dt

    dt.init(passes="none")  # what is issued is executed
    if arguments.ranks:
        ranks_part(dt, arguments)
        finish()
        return
    wanted = set(arguments.only.split(",")) if arguments.only else {
        "issue", "end", "read", "dtensor", "gpt", "mpi"}
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, "
          f"{torch.get_num_threads()} threads an operator")
    if "issue" in wanted:
        issue(dt, "thread", arguments.rounds)
    if "end" in wanted:
        end_to_end(dt, "thread", arguments.rounds, arguments.count)
    if "read" in wanted:
        reading(dt, "thread", arguments.rounds)
    if "dtensor" in wanted:
        dtensor(dt, arguments.rounds, arguments.count)
    if "gpt" in wanted:
        gpt_step(dt, arguments.rounds)
    if "mpi" in wanted:
        dt.shutdown()
        counts = [1, 2, 4] if arguments.quick else [1, 2, 4, 16]
        ranks(counts, 1 if arguments.quick else 3, arguments)
        flatness(counts)
    table()
    finish()


if __name__ == "__main__":
    main()
