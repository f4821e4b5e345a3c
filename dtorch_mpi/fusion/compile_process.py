"""The process that compiles kernels, beside the job and out of its way."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "compiler"
# What launchers tell their ranks: the compile process is none.
_LAUNCHERS = ("PMI_", "PMIX_", "OMPI_", "PRTE_", "MPI_", "MPICH_", "MPIR_", "HYDI_", "HYDRA_",
              "SLURM_", "PALS_", "FI_")  # fmt: skip


def _environment(folder):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    return kept | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
                   "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip


class CompileProcess:
    """Compiles one kernel after the other, from the first request until it is stopped.

    It has low priority and no terminal, prints nothing, and ends when this process does, however
    that ends. Not for several threads at once.
    """

    def __init__(self, folder, nice):
        self._folder = folder
        self._nice = nice
        self._process = None
        self._asked = set()
        self._text = b""

    def request(self, path, spec, gpu=None):
        """Have the kernel compiled into the file at `path`. gpu: None for a library of this
        machine's; else which GPU it is for, as compiler/triton_library.py has it."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(self._nice)], bufsize=0,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=_environment(self._folder), start_new_session=True,
            )  # fmt: skip
            os.set_blocking(self._process.stdout.fileno(), False)
            self._text = b""
        line = json.dumps({"path": str(path), "spec": spec, "gpu": gpu}) + "\n"
        self._asked.add(str(path))
        with contextlib.suppress(BrokenPipeError):  # answers() says so
            self._process.stdin.write(line.encode())

    def answers(self):
        """[(path, what went wrong or "")] of what has come to an end since."""
        if self._process is None:
            return []
        has_ended = self._process.poll() is not None
        while part := self._process.stdout.read():
            self._text += part
        *lines, self._text = self._text.split(b"\n")
        found = [tuple(json.loads(line)) for line in lines]
        self._asked -= {path for path, _ in found}
        if has_ended:
            code = self._process.returncode
            found += [(path, f"the compile process ended with {code}") for path in self._asked]
            self.stop()
        elif not self._asked:
            self.stop()  # it holds hundreds of megabytes
        return found

    def stop(self):
        """End it and the compiler that it runs; what was asked for never comes."""
        process, self._process = self._process, None
        self._asked.clear()
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()
