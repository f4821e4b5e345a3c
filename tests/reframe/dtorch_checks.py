"""Base classes of the checks, for sites to subclass.

    class NightlyTraining(DtorchCheck):
        num_workers = parameter([8, 64])
        executable_opts = ["/project/train.py"]
        marker = r"^trained "

They look for features of partitions and environments, not for names of systems. Figures belong to
DtorchBenchmark, whose `reference` says what a system must reach.
"""

from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, run_after, run_before, sanity_function, variable

ROOT = Path(__file__).resolve().parents[2]
FIGURE = r"^(?P<name>[\w.]+)=(?P<value>[-+.\w]+) (?P<unit>\S+)$"


class DtorchCheck(rfm.RunOnlyRegressionTest):
    """Runs a Python program as one job and looks for the line that says all was right."""

    #: Python with dtorch_mpi installed.
    python = variable(str, value="python")

    #: Numbers of workers, a case each. The job has one rank more, the controller's, but not on
    #: partitions with GPUs: there rank 0 hosts a worker too.
    num_workers = parameter()

    #: Regular expression of a line of stdout without which the check fails, whatever the exit
    #: code. `{workers}` in it stands for the number of workers.
    marker = variable(str)

    valid_systems = ["+mpi"]
    valid_prog_environs = ["+dtorch"]
    # Programs are run where they lie: nothing is copied to the stage folder.
    sourcesdir = None

    @run_after("init")
    def start_python(self):
        self.executable = self.python

    @run_after("setup")
    def lay_out_ranks(self):
        """Ranks, threads and GPUs, by what the partition says it has."""
        gpus = sum(device.num_devices for device in self.current_partition.devices
                   if device.type == "gpu")  # fmt: skip
        if gpus:
            self.num_tasks = self.num_workers
            # For the node, not for each task: that would hide GPUs from their peers.
            self.num_gpus_per_node = min(gpus, self.num_tasks)
            self.env_vars["DTORCH_COHOST"] = "1"
        else:
            self.num_tasks = self.num_workers + 1
        cores = self.current_partition.processor.num_cores or 1
        if self.num_tasks_per_node is None:
            self.num_tasks_per_node = min(self.num_tasks, gpus or cores)
        self.num_cpus_per_task = max(1, cores // self.num_tasks_per_node)
        self.env_vars["OMP_NUM_THREADS"] = str(self.num_cpus_per_task)

    @run_before("run")
    def show_exit_code(self):
        # Not all schedulers tell it (squeue does not), and what runs after has one of its own.
        self.postrun_cmds.insert(0, 'echo "exit code: $?"')

    @sanity_function
    def check_output(self):
        return sn.all(self.expectations())

    def expectations(self):
        """What must hold of the output; subclasses add to it."""
        marker = self.marker.format(workers=self.num_workers)
        return [
            sn.assert_found(r"^exit code: 0$", self.stdout),
            sn.assert_found(marker, self.stdout),
        ]


class DtorchBenchmark(DtorchCheck):
    """Each line `name=value unit` of the program is a figure; `reference` may name any of them.

    Figures without a reference are recorded only. One that is expected, in `figures` or by a
    reference, and not printed fails the check.
    """

    #: Figures without which the check fails. `{workers}` stands for the number of workers.
    figures = variable(tuple, value=())

    marker = r"^\d+ figures measured$"

    def expectations(self):
        expected = {name.format(workers=self.num_workers) for name in self.figures}
        expected |= {name for names in self.reference.data.values() for name in names}
        printed = sn.extractall(FIGURE, self.stdout, "name")
        return [
            *super().expectations(),
            *[sn.assert_in(name, printed, f"the program printed no figure {name}")
              for name in sorted(expected)],
        ]  # fmt: skip

    @run_before("performance")
    def take_figures(self):
        output = Path(self.stagedir, sn.evaluate(self.stdout))
        for name, value, unit in sn.evaluate(
            sn.extractall(FIGURE, str(output), ("name", "value", "unit"))
        ):
            self.perf_variables[name] = sn.make_performance_function(
                sn.defer(float(value)), unit, name
            )
