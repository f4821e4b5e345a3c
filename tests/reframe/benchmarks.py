"""Checks that record the benchmarks' figures, and hold them to a site's `reference`.

None has a reference here: what a machine must reach is its site's to say.
"""

import reframe as rfm
import reframe.utility.sanity as sn
from dtorch_checks import ROOT, DtorchBenchmark
from reframe.core.builtins import parameter, run_after, variable


class Rounds(DtorchBenchmark):
    #: Rounds that medians are taken over.
    rounds = variable(int, value=7)

    #: Operators of each timed loop.
    count = variable(int, value=100_000)

    #: A program in scripts/ and the options that choose a part of it.
    program = variable(tuple)

    @run_after("init")
    def choose_rounds(self):
        name, *options = self.program
        self.executable_opts = [str(ROOT / "scripts" / name), *options, "--rounds",
                                str(self.rounds), "--count", str(self.count)]  # fmt: skip


@rfm.simple_test
class DispatchCheck(Rounds):
    """What issuing operators on sharded tensors costs rank 0, over eager PyTorch."""

    num_workers = parameter([1, 2, 4, 16])
    program = ("bench_dispatch.py", "--ranks")
    figures = ("mpi{workers}.sharded.issue.add.ratio", "mpi{workers}.rank0_cpu.over_eager",
               "mpi{workers}.sends_per_batch")  # fmt: skip

    def expectations(self):
        # Rank 0 sends one message a batch, however many workers there are.
        sends = sn.extractsingle(r"\.sends_per_batch=(\S+) messages$", self.stdout, 1, float)
        return [*super().expectations(), sn.assert_eq(sends, 1)]


@rfm.simple_test
class LoopCheck(Rounds):
    """A loop of small operators, replayed, end to end over eager PyTorch."""

    num_workers = parameter([1])
    program = ("bench_engine.py", "--part", "ranks-loop")
    figures = ("mpi1.loop.ratio",)


@rfm.simple_test
class StepCheck(Rounds):
    """A GPT's training step, data parallel and tensor parallel."""

    num_workers = parameter([2])
    program = ("bench_engine.py", "--part", "ranks-steps")
    figures = ("mpi2.data_parallel", "mpi2.tensor_parallel")


@rfm.simple_test
class OverlapCheck(Rounds):
    """How much of a delay of collectives is covered by operators."""

    num_workers = parameter([2])
    program = ("bench_engine.py", "--part", "ranks-overlap")
    figures = ("mpi2.overlap.first",)
