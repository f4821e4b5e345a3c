"""Measure what replaying and rewriting save, against PyTorch's eager mode, DDP and DTensor.

    python scripts/bench_engine.py [--quick] [--only loop,bytes,...]

Each figure is a ratio of medians from one run on one machine, A and B measured in turn, printed in
a table and again as a line `name=value unit`. The parts that need ranks are started with mpirun
from here; under load from elsewhere the figures mean little.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

import torch
from figures import finish, report, start_ranks, table

PARTS = ("loop", "bytes", "gpt", "chain", "beside", "flat", "overlap", "ddp", "tp", "monarch")
DELAY_US = 20_000  # of each collective, to see what goes on meanwhile
GPT_LAYERS, GPT_WIDTH, GPT_HEADS, GPT_BLOCK, GPT_BATCH = 4, 256, 8, 128, 8


def executed():
    return min(worker["operators"] for worker in torch.dtorch.worker_memory())


# ---- small operators ----------------------------------------------------------------------------


def loop(dt, prefix, arguments):
    """Figure 1: a dependent chain in a loop, then one value read. Nothing is taken out."""
    b = {device: torch.ones(8, 8, device=device) / 100 for device in ("dtorch", "cpu")}

    def run(device, count):
        x = torch.zeros(8, 8, device=device)
        begin = time.perf_counter()
        for _ in range(count):
            x = x + b[device]
        x[0, 0].item()
        return (time.perf_counter() - begin) / count

    run("dtorch", 10_000)  # learns the loop
    taken = {"dtorch": [], "cpu": []}
    for _ in range(arguments.rounds):
        for device, times in taken.items():
            before = executed()
            replayed = dt.debug.counters()["replayed_records"]
            times.append(run(device, arguments.count))
            if device == "dtorch":
                assert executed() - before >= arguments.count, "not every operator was executed"
                replayed = dt.debug.counters()["replayed_records"] - replayed
                assert replayed > 1.8 * arguments.count, f"{replayed} records were replayed"
    mine, theirs = statistics.median(taken["dtorch"]), statistics.median(taken["cpu"])
    report(f"{prefix}.loop", mine * 1e6, "us")
    report(f"{prefix}.loop.eager", theirs * 1e6, "us")
    report(f"{prefix}.loop.ratio", mine / theirs, "x", 1.0)


# ---- a training step ----------------------------------------------------------------------------


def trainer(device, distribute=lambda model: None, wrap=lambda model: model, place=None,
            width=GPT_WIDTH, config=None, batch=GPT_BATCH, autocast=None):
    """A function that makes `count` training steps and gives the last loss.

    config: of another GPT. autocast: dtype that the forward pass computes in.
    """
    from gpt import GPT, GPTConfig

    torch.manual_seed(0)
    if config is None:
        config = GPTConfig(layers=GPT_LAYERS, width=width, heads=GPT_HEADS, block=GPT_BLOCK)
    model = GPT(config).to(device)
    kind = torch.device(device).type
    distribute(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    model = wrap(model)
    tokens = torch.randint(0, 256, (batch, config.block + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    place = place or (lambda tensor: tensor.to(device))
    inputs, targets = place(inputs), place(targets)

    def steps(count):
        for _ in range(count):
            with torch.autocast(kind, autocast, enabled=autocast is not None):
                logits = model(inputs)
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return steps


def seconds_a_step(steps, count=4):
    begin = time.perf_counter()
    steps(count).item()
    return (time.perf_counter() - begin) / count


def gpt(dt, arguments):
    """Figure 3: a training step of a GPT with one worker over plain PyTorch."""
    contenders = {"gpt": trainer("dtorch"), "gpt.eager": trainer("cpu")}
    for steps in contenders.values():
        seconds_a_step(steps, 4)
    dt.runtime.current().main.planner.wait(600, kernels=True)
    taken = {name: [] for name in contenders}
    for _ in range(arguments.rounds):
        for name, steps in contenders.items():
            taken[name].append(seconds_a_step(steps))
    times = {name: statistics.median(values) for name, values in taken.items()}
    for name, value in times.items():
        report(name, value * 1e3, "ms")
    report("gpt.ratio", times["gpt"] / times["gpt.eager"], "x", 0.95)


def beside(dt, arguments):
    """Two chains of products that need nothing of each other: on one stream, on two, and in a graph
    each. One thread an operator.
    """
    graphs = [dt.Graph(streams=streams) for streams in ("communication", "branches")]
    other = dt.Graph()
    x = torch.randn(256, 256, device="dtorch") / 16

    def chain(function, length=12):
        y = x
        for _ in range(length):
            y = function(y @ x)
        return y

    def within(graph):
        with graph:
            total = (chain(torch.tanh) - chain(torch.sin)).sum()
            dt.mark_step()
        total.item()

    def in_two():
        first = chain(torch.tanh)
        dt.mark_step()
        with other:
            second = chain(torch.sin)
            dt.mark_step()
        dt.sync()
        del first, second

    contenders = {
        "beside.one": lambda: within(graphs[0]), "beside.branches": lambda: within(graphs[1]),
        "beside.graphs": in_two,
    }
    for _ in range(3):
        for run in contenders.values():
            for _ in range(3):
                run()
        for engine in dt.runtime.current().engines.values():
            engine.planner.wait(60)
    taken = {name: [] for name in contenders}
    for _ in range(arguments.rounds):
        for name, run in contenders.items():
            begin = time.perf_counter()
            for _ in range(10):
                run()
            taken[name].append((time.perf_counter() - begin) / 10)
    times = {name: statistics.median(values) for name, values in taken.items()}
    for name, value in times.items():
        report(name, value * 1e3, "ms")
    for name in ("branches", "graphs"):
        report(f"beside.{name}.ratio", times[f"beside.{name}"] / times["beside.one"], "x")


def bytes_a_step(dt):
    """Figure 2: what a training step sends, replayed over the first time."""
    steps, sent = trainer("dtorch", width=64), []
    for step in range(12):
        if step == 10:
            dt.runtime.current().main.planner.wait(600, kernels=True)
        dt.sync()
        before = dt.debug.counters()["bytes_sent"]
        steps(1)
        dt.sync()
        sent.append(dt.debug.counters()["bytes_sent"] - before)
    report("step.bytes.first", sent[1], "bytes")
    report("step.bytes.replayed", sent[-1], "bytes")
    report("step.bytes.ratio", sent[-1] / sent[1], "x", 0.05)


def rank0_cpu(dt, prefix, arguments):
    """Figure 2: rank 0's CPU time for a replayed step, over eager's operators of the same round."""
    mesh = dt.init_device_mesh((dt.num_workers(),))
    data = [dt.Shard(0)]
    # Small: workers that share the cores must not keep rank 0 waiting for room.
    steps = trainer("dtorch", lambda model: dt.distribute_module(model, mesh, {}), width=32,
                    place=lambda tensor: dt.distribute_tensor(tensor, mesh, data))  # fmt: skip
    steps(6)
    dt.sync()
    a = torch.ones(8, 8)
    over_eager = []
    for _ in range(arguments.rounds):
        begin = time.process_time()
        for _ in range(20_000):
            a + a
        eager = (time.process_time() - begin) / 20_000
        begin = time.process_time()
        steps(5)
        over_eager.append((time.process_time() - begin) / 5 / eager)
        dt.sync()
    report(f"{prefix}.step.rank0_cpu.over_eager", statistics.median(over_eager), "x")


def chain(dt, arguments):
    """Figure 4: twenty pointwise operators on four million floats."""

    def run(device):
        x = torch.full((4_000_000,), 0.5, device=device)
        for i in range(5):
            x = torch.sigmoid(torch.relu(x * 0.9 + 0.1 * i))
        return x

    def taken(device):
        begin = time.perf_counter()
        run(device)[0].item()
        return time.perf_counter() - begin

    for _ in range(5):
        taken("dtorch")
    dt.runtime.current().main.planner.wait(600, kernels=True)
    times = {"dtorch": [], "cpu": []}
    for _ in range(arguments.rounds):
        for device, values in times.items():
            values.append(taken(device))
    mine, theirs = statistics.median(times["dtorch"]), statistics.median(times["cpu"])
    report("chain", mine * 1e3, "ms")
    report("chain.eager", theirs * 1e3, "ms")
    report("chain.ratio", mine / theirs, "x", 0.35)


def monarch(dt, arguments):
    """Figure 6: small operators over Monarch's tensor engine with one worker."""
    try:
        from monarch import fetch_shard
        from monarch.actor import this_host
        from monarch.mesh_controller import spawn_tensor_engine
    except ImportError:
        print("monarch: torchmonarch is not installed, nothing to compare with")
        return
    theirs = spawn_tensor_engine(this_host().spawn_procs({"gpus": 1}))

    def run(device, count, read):
        a = torch.ones(8, 8, device=device)
        b = torch.ones(8, 8, device=device) / 100
        begin = time.perf_counter()
        for _ in range(count):
            a = a + b
        read(a)
        return (time.perf_counter() - begin) / count

    def of_ours(count):
        return run("dtorch", count, lambda tensor: tensor.to_torch())

    def of_theirs(count):
        with theirs.activate():
            return run(None, count, lambda tensor: fetch_shard(tensor).result())

    contenders = {"monarch.ours": (of_ours, 100_000), "monarch": (of_theirs, 1000)}
    taken = {name: [] for name in contenders}
    for _ in range(arguments.rounds):
        for name, (function, count) in contenders.items():
            taken[name].append(function(count))
    times = {name: statistics.median(values) for name, values in taken.items()}
    for name, value in times.items():
        report(name, value * 1e6, "us")
    report("monarch.times_faster", times["monarch"] / times["monarch.ours"], "x", -100)
    theirs.exit()


# ---- jobs of several ranks ----------------------------------------------------------------------


def data_parallel(dt, prefix, arguments):
    mesh = dt.init_device_mesh((dt.num_workers(),))
    data = [dt.Shard(0)]
    steps = trainer("dtorch", lambda model: dt.distribute_module(model, mesh, {}),
                    place=lambda tensor: dt.distribute_tensor(tensor, mesh, data))  # fmt: skip
    _report_steps(f"{prefix}.data_parallel", steps, arguments)


TENSOR_PARALLEL = {"*.qkv.*": 0, "*.out.weight": 1, "*.up.*": 0, "*.down.weight": 1}


def tensor_parallel(dt, prefix, arguments):
    mesh = dt.init_device_mesh((dt.num_workers(),))
    plan = {name: [dt.Shard(dim)] for name, dim in TENSOR_PARALLEL.items()}
    steps = trainer("dtorch", lambda model: dt.distribute_module(model, mesh, plan))
    _report_steps(f"{prefix}.tensor_parallel", steps, arguments)


def _report_steps(name, steps, arguments):
    seconds_a_step(steps, 6)
    times = [seconds_a_step(steps) for _ in range(arguments.rounds)]
    report(name, statistics.median(times) * 1e3, "ms")


def overlap(dt, prefix, arguments):
    """Figure 5: how much of a delay of collectives operators cover, in a profile."""
    mesh = dt.init_device_mesh((dt.num_workers(),))
    data = [dt.Shard(0)]
    steps = trainer("dtorch", lambda model: dt.distribute_module(model, mesh, {}),
                    place=lambda tensor: dt.distribute_tensor(tensor, mesh, data))  # fmt: skip
    seconds_a_step(steps, 6)
    dt.runtime.current().main.planner.wait(600, kernels=True)
    steps(2)
    first, every = [], []
    for _ in range(arguments.rounds):
        dt.sync()
        with dt.profile() as profile:
            steps(3)  # the first one is in a window with the profile's own beginning
            dt.sync()
        timed = [event for event in profile.events() if event["ph"] == "X" and event["pid"] >= 2]
        for pid in {event["pid"] for event in timed}:
            work = [e for e in timed if e["pid"] == pid and not e["name"].startswith("redistribute")
                    and e["cat"] == "operator"]  # fmt: skip
            delayed = [e for e in timed if e["pid"] == pid and e["dur"] >= DELAY_US
                       and e["name"].startswith("redistribute")]  # fmt: skip
            covered = [_covered(e["ts"], e["ts"] + DELAY_US, work) / DELAY_US for e in delayed]
            # Those of the loss are needed at once.
            gradients = [share for e, share in zip(delayed, covered, strict=True)
                         if e["args"].get("rewritten")]  # fmt: skip
            first.append(gradients[0])
            every += covered
    report(f"{prefix}.overlap.first", statistics.median(first), "x", -0.8)
    report(f"{prefix}.overlap.every", statistics.mean(every), "x")


def _covered(begin, end, events):
    return sum(max(0.0, min(end, e["ts"] + e["dur"]) - max(begin, e["ts"])) for e in events)


def peers(arguments):
    """Plain PyTorch's own ways with as many ranks: DDP, and DTensor's tensor parallelism."""
    import torch.distributed as dist
    from mpi4py import MPI
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.nn.parallel import DistributedDataParallel

    world = MPI.COMM_WORLD
    folder = world.bcast(tempfile.mkdtemp() if world.rank == 0 else None)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=world.rank,
                            world_size=world.size)  # fmt: skip
    torch.set_num_threads(1)

    def own_rows(tensor):
        return tensor.chunk(world.size)[world.rank].contiguous()

    steps = trainer("cpu", wrap=DistributedDataParallel, place=own_rows)
    seconds_a_step(steps, 3)
    ddp = [seconds_a_step(steps) for _ in range(arguments.rounds)]

    mesh = dist.init_device_mesh("cpu", (world.size,))

    def distribute(model):
        from fnmatch import fnmatch

        from torch.distributed.tensor import Replicate

        for name, parameter in list(model.named_parameters()):
            dim = next((d for p, d in TENSOR_PARALLEL.items() if fnmatch(name, p)), None)
            placement = Replicate() if dim is None else Shard(dim)
            owner = model.get_submodule(name.rpartition(".")[0])
            made = torch.nn.Parameter(distribute_tensor(parameter.data, mesh, [placement]))
            owner.register_parameter(name.rpartition(".")[2], made)

    def whole(tensor):
        return distribute_tensor(tensor, mesh)

    steps = trainer("cpu", distribute, place=whole)

    from torch.distributed.tensor.experimental import implicit_replication
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def step_and_read(count):
        # For the positions, which the model makes itself; and there is no rule for the CPU's fused
        # attention.
        with implicit_replication(), sdpa_kernel(SDPBackend.MATH):
            return steps(count).full_tensor()

    seconds_a_step(step_and_read, 3)
    tp = [seconds_a_step(step_and_read) for _ in range(arguments.rounds)]
    if world.rank == 0:
        report("peer.ddp", statistics.median(ddp) * 1e3, "ms")
        report("peer.tp", statistics.median(tp) * 1e3, "ms")
    dist.destroy_process_group()


def against_peers(arguments):
    """Figure 3: two workers over two ranks of DDP; tensor parallelism over DTensor's."""
    found = {}
    options = ["--rounds", "3"]
    for _ in range(1 if arguments.quick else 3):
        for ranks, part in ((3, "ranks-steps"), (2, "peers")):
            for name, value, _ in start_ranks(__file__, ranks, "--part", part, *options):
                found.setdefault(name, []).append(float(value))
    values = {name: statistics.median(times) for name, times in found.items()}
    for name, value in values.items():
        report(name, value, "ms")
    report("ddp.ratio", values["mpi2.data_parallel"] / values["peer.ddp"], "x", 0.95)
    report("tp.ratio", values["mpi2.tensor_parallel"] / values["peer.tp"], "x", 0.7)


def flat(arguments):
    counts = (1, 2, 4) if arguments.quick else (1, 2, 4, 8)
    found = {}
    for _ in range(1 if arguments.quick else 3):
        for workers in counts:
            options = ["--part", "ranks-cpu", "--rounds", str(arguments.rounds)]
            for name, value, _ in start_ranks(__file__, workers + 1, *options):
                found.setdefault(name, []).append(float(value))
    values = {name: statistics.median(times) for name, times in found.items()}
    for name, value in values.items():
        report(name, value, "x")
    report("flat.step.rank0_cpu", max(values.values()) / min(values.values()), "x", 1.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no job of 8 workers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=100_000, help="operators of the loop")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--part", default="", 
                        help="what a job that a launcher has started measures of itself: "
                        "ranks-loop, ranks-steps, ranks-cpu or ranks-overlap")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.count = 3, 30_000
    if arguments.part == "peers":
        return peers(arguments)
    import dtorch_mpi as dt

    wanted = set(arguments.only.split(","))
    if arguments.part == "ranks-loop" or (not arguments.part and "loop" in wanted):
        dt.init(passes="none")
        loop(dt, "mpi1" if arguments.part else "thread", arguments)
        dt.shutdown()
    if arguments.part:
        if arguments.part != "ranks-loop":
            delay = DELAY_US if arguments.part == "ranks-overlap" else 0
            dt.init(collective_delay_us=delay)
            prefix = f"mpi{dt.num_workers()}"
            if arguments.part == "ranks-overlap":
                overlap(dt, prefix, arguments)
            elif arguments.part == "ranks-cpu":
                rank0_cpu(dt, prefix, arguments)
            else:
                data_parallel(dt, prefix, arguments)
                tensor_parallel(dt, prefix, arguments)
        finish()
        return
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, "
          f"{torch.get_num_threads()} threads an operator")
    if "loop" in wanted:
        for name, value, unit in start_ranks(__file__, 2, "--part", "ranks-loop", "--rounds",
                                             str(arguments.rounds), "--count",
                                             str(arguments.count)):  # fmt: skip
            report(name, float(value), unit, 1.0 if name.endswith("ratio") else None)
    dt.init()
    if "bytes" in wanted:
        bytes_a_step(dt)
    if "gpt" in wanted:
        gpt(dt, arguments)
    if "chain" in wanted:
        chain(dt, arguments)
    if "monarch" in wanted:
        monarch(dt, arguments)
    dt.shutdown()
    if "beside" in wanted:
        dt.init(threads=1)
        beside(dt, arguments)
        dt.shutdown()
    if "flat" in wanted:
        flat(arguments)
    if "overlap" in wanted:
        for name, value, unit in start_ranks(__file__, 3, "--part", "ranks-overlap", "--rounds",
                                             str(arguments.rounds)):  # fmt: skip
            report(name, float(value), unit, -0.8 if name.endswith("first") else None)
    if wanted & {"ddp", "tp"}:
        against_peers(arguments)
    table()
    finish()
    return None


if __name__ == "__main__":
    sys.exit(main())
