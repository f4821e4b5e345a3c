"""Settings from the environment, in one table. Each has the prefix DTORCH_."""

import difflib
import os
import warnings
from dataclasses import dataclass, fields

from .launch.environment import detect


@dataclass
class Settings:
    """What `dt.init()` reads; the environment variable is DTORCH_ and the name in capitals."""

    workers: int = 1
    """Worker threads when there is no launcher."""
    cohost: bool | None = None
    """Whether rank 0 hosts a worker too; unset: where its node has one rank a GPU."""
    device: str = ""
    """What workers compute on: cpu, or gpu, which is an error where a worker sees none. Empty: a
    GPU where there is one."""
    max_records: int = 100_000
    """How many records the client may be ahead of the slowest worker."""
    max_bytes: int = 1 << 28
    """How many bytes of records and uploads may be under way."""
    window_bytes: int = 1 << 16
    """The largest batch, unless one record is larger."""
    gather_us: int = 40
    """How long records gather into a batch while workers are busy, in microseconds."""
    traces: bool = True
    """Whether what the program does again is replayed by the workers."""
    passes: str = "all"
    """Which passes rewrite it: all, none, or names with commas between."""
    cache: str = ""
    """Where compiled kernels are kept, by what they do and for which machine; several jobs may
    share it. Empty: dtorch_mpi in XDG_CACHE_HOME, else in ~/.cache."""
    compile_nice: int = 5
    """How much the process that compiles kernels yields to others: 0 to 19, as in nice(1)."""
    kernels: str = ""
    """Python kernels that stand in for PyTorch's operators: names with commas between."""
    streams: str = "communication"
    """one: workers do one thing at a time. communication: collectives go on beside computation.
    branches: in what is replayed, operators that do not depend on each other run at once, too."""
    cuda_graphs: bool = False
    """Whether workers on GPUs of CUDA run parts of what is replayed as CUDA graphs."""
    triton: bool = False
    """Whether workers on GPUs of CUDA run kernels that Triton compiles, in the place of several
    operators each."""
    spins: int = 500
    """How often a waiting worker yields before it sleeps."""
    home: str = ""
    """Forces where values come back: memory, shared or network. Empty: the nearest."""
    threads: int = 0
    """Threads of an operator on each worker. 0: OMP_NUM_THREADS, else its share of the cores."""
    log: str = ""
    """The least level of what is logged: debug, info, warning or error. Empty: warning, and info
    in files."""
    log_ranks: str = "0"
    """Which ranks log to stderr: numbers with commas between, or all."""
    log_folder: str = ""
    """A folder in which each rank logs to a file of its own, rank00003.log. Empty: none."""
    log_prefix: bool = True
    """Whether [rank 3/8 host] stands before each line on stderr, where there are several ranks."""
    watchdog_seconds: int = 600
    """How long a worker may be in one operator or kernel, or stopped by a signal, before it is
    taken for stuck and the job ended. 0: for ever."""
    collective_delay_us: int = 0
    """How long collectives last at least, in microseconds: for tests of what goes on meanwhile."""

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is not str and not isinstance(value, field.type):
                raise TypeError(
                    f"{field.name} is {value!r}: expected {_EXPECTED[field.type]} "
                    f"(DTORCH_{field.name.upper()})"
                )
        if self.workers < 1:
            raise ValueError(f"workers is {self.workers}: expected at least 1 (DTORCH_WORKERS)")
        if self.watchdog_seconds < 0:
            raise ValueError(
                f"watchdog_seconds is {self.watchdog_seconds}: expected seconds, or 0 for none "
                "(DTORCH_WATCHDOG_SECONDS)"
            )
        if self.streams not in ("one", "communication", "branches"):
            raise ValueError(
                f"streams is {self.streams!r}: expected one, communication or branches "
                "(DTORCH_STREAMS)"
            )
        if self.device not in ("", "cpu", "gpu"):
            raise ValueError(f"device is {self.device!r}: expected cpu or gpu (DTORCH_DEVICE)")
        if self.home not in ("", "memory", "shared", "network"):
            raise ValueError(
                f"home is {self.home!r}: expected memory, shared or network (DTORCH_HOME)"
            )
        if self.log.lower() not in ("", "debug", "info", "warning", "error"):
            raise ValueError(
                f"log is {self.log!r}: expected debug, info, warning or error (DTORCH_LOG)"
            )
        ranks = [] if self.log_ranks == "all" else self.log_ranks.split(",")
        if not all(rank.strip().isdecimal() for rank in ranks):
            raise ValueError(
                f"log_ranks is {self.log_ranks!r}: expected numbers with commas between, or all "
                "(DTORCH_LOG_RANKS)"
            )


_EXPECTED = {int: "a whole number", bool: "1 or 0", bool | None: "1 or 0"}
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _parse(name, text, kind):
    try:
        if kind in (bool, bool | None):
            return _TRUTH[text.lower()]
        return int(text) if kind is int else text
    except (KeyError, ValueError):
        raise ValueError(f"{name}={text!r}: expected {_EXPECTED[kind]}") from None


# Read by others than dt.init(): setup.py, the watchers of ranks, the launch command and the job
# scripts in slurm/.
_OTHERS = {"DTORCH_DEATHS_FILE", "DTORCH_DEBUG", "DTORCH_ONLY", "DTORCH_SANITIZE",
           "DTORCH_SRUN_MPI"}  # fmt: skip


preset = {}  # what dt.config has been told before dt.init()
NAMES = tuple(field.name for field in fields(Settings))
VARIABLES = frozenset("DTORCH_" + name.upper() for name in NAMES) | _OTHERS


def from_environment(**given):
    """Settings with the environment's values; `given` ones that are not None win."""
    if wrong := given.keys() - set(NAMES):
        raise TypeError(f"got the settings {sorted(wrong)}: expected some of {', '.join(NAMES)}")
    values = {}
    for field in fields(Settings):
        name = "DTORCH_" + field.name.upper()
        if given.get(field.name) is not None:
            values[field.name] = given[field.name]
        elif name in os.environ:
            values[field.name] = _parse(name, os.environ[name], field.type)
    launch = detect()
    for name in unknown() if launch is None or launch.rank == 0 else ():
        near = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.8)
        hint = f"; did you mean {near[0]}?" if near else ""
        warnings.warn(
            f"{name} is set, but dtorch_mpi knows no such setting{hint}", stacklevel=3
        )
    return Settings(**values)


def unknown():
    """The DTORCH_* variables of the environment that are no settings."""
    return [name for name in sorted(os.environ)
            if name.startswith("DTORCH_") and name not in VARIABLES]
