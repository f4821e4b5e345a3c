"""Measure a worker on a GPU against PyTorch's eager mode and torch.compile on the same GPU.

    python scripts/bench_gpu.py [--quick] [--only small,replayed,...] [--out FIGURES.json]

Each figure is a ratio of medians from one run, A and B measured in turn; times are of the host's
clock, from the first call until a value of the last has arrived, except where `device` is in the
name. One worker thread; plain PyTorch trains in a process of its own. Without a GPU it says so and
leaves with 0; `--device cpu` runs the same parts small on a CPU worker, which says nothing of GPUs.
A part that raises is reported, the others go on, and the exit code is 1.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from bench_dispatch import executed, reading
from bench_engine import seconds_a_step, trainer
from figures import finish, in_turn, leave_out, report, seconds, table, write
from gpt import GPTConfig

IN_FLIGHT = 500  # operators, so that neither side waits for room in a queue
CAPTURED = 100  # operators of a CUDA graph
NEEDS_CUDA = "needs a GPU"


class Place:
    """What is measured against, and sizes. eager: the device of plain PyTorch."""

    def __init__(self, kind, quick):
        self.kind, self.eager = kind, {"gpu": "cuda", "cpu": "cpu"}[kind]
        self.is_gpu = kind == "gpu"
        self.rounds = 3 if quick else 7
        if self.is_gpu:
            self.size, self.dtype = 1024, torch.bfloat16
            self.count = 2000 if quick else 10_000
            self.config = GPTConfig(layers=12, width=768, heads=12, block=1024)
            self.batch, self.steps = 8, 4 if quick else 10
        else:
            self.size, self.dtype = 64, torch.float32
            self.count = 1000
            self.config = GPTConfig(layers=2, width=32, heads=2, block=16)
            self.batch, self.steps = 2, 2

    def wait(self):
        """For all that plain PyTorch has issued."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def functions(self, device):
        """By name, one small operator each, whose result nobody keeps."""
        shape = self.size, self.size
        a = torch.ones(shape, device=device, dtype=self.dtype)
        b = torch.full(shape, 1 / self.size, device=device, dtype=self.dtype)
        return {"add": lambda: a + b, "mm": lambda: a @ b}

    def trainer(self, device, **options):
        return trainer(device, config=self.config, batch=self.batch, autocast=torch.bfloat16,
                       **options)  # fmt: skip


# ---- small operators ----------------------------------------------------------------------------


def small(dt, place):
    """Issued and launched one by one, as in a program whose every step differs."""
    dt.init(1, device=place.kind, passes="none", traces=False)
    against_eager(dt, place, "small", 1.0)


def replayed(dt, place, name="replayed", **settings):
    """The same in a loop, of which the worker has a plan."""
    dt.init(1, device=place.kind, passes="none", **settings)
    before = dt.debug.counters()["replayed_records"]
    against_eager(dt, place, name, 0.3)
    count = dt.debug.counters()["replayed_records"] - before
    # Both operators, each with the release of its result.
    assert count > 3 * place.rounds * place.count, f"{count} records were replayed"


def against_eager(dt, place, prefix, target):
    ours, eager = place.functions("dtorch"), place.functions(place.eager)
    values = {device: torch.ones((), device=device) for device in ("dtorch", place.eager)}

    def run(function, device):
        begin = time.perf_counter()
        for _ in range(place.count):
            function()
        (values[device] + 1).item()
        return (time.perf_counter() - begin) / place.count

    def sync():
        dt.sync()
        place.wait()

    for name in ours:
        taken = {"dtorch": [], place.eager: []}
        for round_ in range(-1, place.rounds):  # the first one warms up
            for function, device in ((ours[name], "dtorch"), (eager[name], place.eager)):
                sync()
                before = executed(dt)[0]
                time_ = run(function, device)
                if device == "dtorch":
                    done = executed(dt)[0] - before
                    assert done >= place.count, f"{place.count} operators issued, {done} executed"
                if round_ >= 0:
                    taken[device].append(time_)
        mine, theirs = (statistics.median(times) for times in taken.values())
        report(f"{prefix}.{name}", mine * 1e6, "us")
        report(f"{prefix}.{name}.eager", theirs * 1e6, "us")
        report(f"{prefix}.{name}.ratio", mine / theirs, "x", target)
        # What the program alone spends: neither side is waited for.
        mine, theirs = in_turn(ours[name], eager[name], IN_FLIGHT, place.rounds, sync)
        report(f"{prefix}.{name}.issue.ratio", mine / theirs, "x")


def device_time(dt, place):
    """What the device itself takes: no ratio above can be less than this is of eager's time."""
    for name, function in place.functions(place.eager).items():
        if place.is_gpu:
            report(f"device.{name}", seconds_on_device(function) * 1e6, "us")
        else:
            leave_out(f"device.{name}", NEEDS_CUDA)


def seconds_on_device(function, replays=20):
    """Median of a call in a CUDA graph, by events: nothing is launched one by one."""
    graph = torch.cuda.CUDAGraph()
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(CAPTURED):
            function()
    times = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / CAPTURED)
    return statistics.median(times)


def read(dt, place):
    """The whole way of a small value, from the call to the CPU tensor."""
    dt.init(1, device=place.kind)
    reading(dt, place.kind, place.rounds)
    tensor = torch.ones(16, 16, device=place.eager)
    times = [seconds(tensor.cpu, 1) for _ in range(200 * place.rounds)]
    report(f"{place.kind}.read.eager", statistics.median(times) * 1e6, "us")


# ---- a training step ----------------------------------------------------------------------------


class Training:
    """A GPT in training on a device of this process."""

    def __init__(self, place, device, compiled=False):
        self._is_gpu = place.is_gpu
        self._before = torch.cuda.memory_allocated() if place.is_gpu else 0
        options = {"wrap": torch.compile} if compiled else {}
        self._steps = place.trainer(device, **options)

    def loss(self, count):
        return self._steps(count).item()

    def seconds(self, count):
        return seconds_a_step(self._steps, count)

    def idle_share(self, count):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace.json")
            cuda = [torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=cuda) as profile:
                self._steps(count).item()
                torch.cuda.synchronize()
            profile.export_chrome_trace(trace)
            return idle_share(trace)

    def peak(self, count):
        """Bytes, with model and optimizer."""
        torch.cuda.reset_peak_memory_stats()
        self._steps(count).item()
        return torch.cuda.max_memory_allocated() - self._before


class PlainTraining:
    """The same in plain PyTorch, in a process of its own.

    Where dtorch_mpi is loaded, autograd takes `dtorch` for the only accelerator there is, and fails
    on CUDA (pytorch/pytorch#161129).
    """

    def __init__(self, place, compiled=False):
        self._process = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self._ask(_begin, place, compiled)

    def __getattr__(self, name):
        return lambda count: self._ask(_continue, name, count)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.shutdown()

    def _ask(self, function, *arguments):
        result, failure = self._process.submit(function, *arguments).result()
        if failure is not None:
            raise RuntimeError(failure)
        return result


_training = None  # of such a process


def _begin(place, compiled):
    global _training
    _training = Training(place, place.eager, compiled)
    return None, None


def _continue(name, count):
    """(result, None), or (None, why not): not every exception can be sent."""
    try:
        return getattr(_training, name)(count), None
    except Exception as error:
        return None, f"{type(error).__name__}: {first_line(error)}"


def first_line(error):
    return (str(error).strip() or "no text").splitlines()[0]


def settle(dt):
    """Waits until plans and their kernels are there."""
    dt.runtime.current().main.planner.wait(600, kernels=True)


def step(dt, place, name="gpt", **settings):
    """A training step of a GPT over eager's and over torch.compile's."""
    dt.init(1, device=place.kind, **settings)
    with PlainTraining(place) as eager, PlainTraining(place, compiled=True) as compiled:
        contenders = {name: Training(place, "dtorch"), f"{name}.eager": eager}
        try:
            compiled.loss(1)
            contenders[f"{name}.compiled"] = compiled
        except RuntimeError as error:
            leave_out(f"{name}.compiled", f"torch.compile can't run: {error}")
        losses = {whose: training.loss(5 if training is compiled else 6)
                  for whose, training in contenders.items()}  # fmt: skip
        settle(dt)
        # The same steps of the same model, in bfloat16.
        apart = max(abs(loss / losses[f"{name}.eager"] - 1) for loss in losses.values())
        assert apart < 0.02, f"losses after six steps: {losses}"
        taken = {whose: [] for whose in contenders}
        for round_ in range(-1, place.rounds):  # the first one warms up
            for whose, training in contenders.items():
                time_ = training.seconds(place.steps)
                if round_ >= 0:
                    taken[whose].append(time_)
    times = {whose: statistics.median(values) for whose, values in taken.items()}
    for whose, value in times.items():
        report(whose, value * 1e3, "ms")
    report(f"{name}.ratio", times[name] / times[f"{name}.eager"], "x", 0.95)
    if f"{name}.compiled" in times:
        report(f"{name}.over_compiled.ratio", times[name] / times[f"{name}.compiled"], "x", 1.05)


def idle(dt, place):
    """Of a training step, the share in which the device has nothing to do."""
    if not place.is_gpu:
        leave_out("gpt.idle", NEEDS_CUDA)
        return
    dt.init(1, device=place.kind)
    report("gpt.idle", settled(dt, Training(place, "dtorch")).idle_share(place.steps), "x", 0.03)
    with PlainTraining(place) as eager:
        report("gpt.idle.eager", settled(dt, eager).idle_share(place.steps), "x")


def settled(dt, training):
    """The training, once it runs as it will go on."""
    training.loss(6)
    settle(dt)
    training.loss(2)
    return training


def idle_share(trace):
    """Of the time from a device's first to its last work in a Chrome trace, what no work covers."""
    with open(trace) as file:
        events = json.load(file)["traceEvents"]
    # Annotations of the device's time line cover what is between kernels, too.
    work = sorted((event["ts"], event["ts"] + event["dur"]) for event in events
                  if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))  # fmt: skip
    assert work, f"no work of a device among {len(events)} events: CUPTI, which finds it, did not"
    busy, until = 0.0, work[0][0]
    for begin, end in work:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return 1 - busy / (until - work[0][0])


def memory(dt, place):
    """The most that a training step has allocated on the device, over eager's."""
    if not place.is_gpu:
        leave_out("gpt.memory", NEEDS_CUDA)
        return
    dt.init(1, device=place.kind)
    mine = settled(dt, Training(place, "dtorch")).peak(4)
    with PlainTraining(place) as eager:
        theirs = settled(dt, eager).peak(4)
    report("gpt.memory", mine / 2**20, "MiB")
    report("gpt.memory.eager", theirs / 2**20, "MiB")
    report("gpt.memory.ratio", mine / theirs, "x")


def with_graphs(part, name):
    """A part again, with CUDA graphs and kernels of Triton's."""

    def run(dt, place):
        if place.is_gpu:
            part(dt, place, name, cuda_graphs=True, triton=True)
        else:
            leave_out(name, NEEDS_CUDA)

    return run


PARTS = {"device": device_time, "small": small, "replayed": replayed, "read": read,
         "memory": memory, "step": step, "idle": idle,
         "replayed_graphs": with_graphs(replayed, "replayed_graphs"),
         "step_graphs": with_graphs(step, "gpt_graphs")}  # fmt: skip


def run_part(dt, name, place):
    """False: it raised, and its error is told."""
    try:
        try:
            PARTS[name](dt, place)
        finally:
            dt.shutdown()
            gc.collect()
    except Exception as error:
        traceback.print_exc()
        leave_out(name, f"failed: {type(error).__name__}: {first_line(error)}")
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--out", help="a JSON file for the figures, which gpu_report.py reads")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    if unknown := set(wanted) - PARTS.keys():
        parser.error(f"--only: got {', '.join(sorted(unknown))}, expected of {', '.join(PARTS)}")
    if arguments.device == "gpu" and not torch.cuda.is_available():
        print(f"bench_gpu: torch {torch.__version__} finds no GPU here: nothing to measure")
        return 0
    import dtorch_mpi as dt

    place = Place(arguments.device, arguments.quick)
    on = torch.cuda.get_device_name() if place.is_gpu else "a CPU worker: no figure is a GPU's"
    print(f"torch {torch.__version__}, {on}")
    failed = []
    for number, name in enumerate(wanted):
        if arguments.out:
            write(arguments.out, failed + wanted[number:])  # should it be ended in the midst of it
        if not run_part(dt, name, place):
            failed.append(name)
    if arguments.out:
        write(arguments.out, failed)
    table()
    finish()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
