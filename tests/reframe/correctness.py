"""Checks that a job computes what plain PyTorch does: training, collectives, checkpoints."""

import reframe as rfm
import reframe.utility.sanity as sn
from dtorch_checks import ROOT, DtorchBenchmark, DtorchCheck
from reframe.core.builtins import parameter, run_after, run_before, variable

PROGRAMS = ROOT / "tests" / "reframe" / "programs"


@rfm.simple_test
class TrainingCheck(DtorchCheck):
    """A small GPT, trained, has plain PyTorch's losses at each step, in two precisions."""

    #: Ways to place the model: data (parallel), sharded (parameters too), tensor (4 workers).
    ways = variable(tuple, value=("data", "sharded"))

    #: Optimizer steps.
    num_steps = variable(int, value=50)

    num_workers = parameter([1, 2, 4])
    marker = r"^losses are those of plain PyTorch, {workers} workers$"

    @run_after("init")
    def choose_ways(self):
        program = ROOT / "tests" / "end_to_end" / "parallel_training.py"
        self.executable_opts = [str(program), "--steps", str(self.num_steps), *self.ways]

    def expectations(self):
        compared = sn.extractall(r"^(\w+) (\S+) on (\d+) workers: ", self.stdout, (1, 2, 3))
        return [
            *super().expectations(),
            *[sn.assert_in((way, dtype, str(self.num_workers)), compared)
              for way in self.ways for dtype in ("torch.float32", "torch.float64")],
        ]  # fmt: skip


@rfm.simple_test
class CollectivesCheck(DtorchBenchmark):
    """Every collective that a change of placements needs, with uneven parts, is exact.

    Its figures are the rates of large ones, of the global tensor's bytes.
    """

    num_workers = parameter([1, 2, 3, 4])
    executable_opts = [str(PROGRAMS / "redistributions.py")]
    marker = r"^all redistributions are exact, {workers} workers$"
    figures = ("all_gather.{workers}", "all_reduce.{workers}", "reduce_scatter.{workers}",
               "all_to_all.{workers}")  # fmt: skip


@rfm.simple_test
class CheckpointCheck(DtorchCheck):
    """A checkpoint loads on other placements, and other readers of HDF5 see the same numbers."""

    #: Where the checkpoint goes: a folder that all nodes see. Empty: the stage folder.
    folder = variable(str, value="")

    num_workers = parameter([2, 4])
    marker = r"^the checkpoint holds what was saved, {workers} workers$"

    @run_after("setup")
    def choose_folder(self):
        path = f"{self.folder or self.stagedir}/checkpoint"
        self.executable_opts = [str(PROGRAMS / "checkpoint_round_trip.py"), path]

    @run_before("run")
    def dump(self):
        if "h5dump" in self.current_environ.features:
            newest = f"{self.executable_opts[-1]}/*/index.h5"
            self.postrun_cmds += [f"h5dump --dataset=/weight --width=0 {newest}"]

    def expectations(self):
        found = super().expectations()
        if "h5dump" in self.current_environ.features:
            # The last row of 7 x 3.
            found.append(sn.assert_found(r"\(6,0\): 18, 19, 20$", self.stdout))
        return found
