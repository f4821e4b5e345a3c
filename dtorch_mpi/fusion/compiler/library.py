"""Compiles a fused kernel's source with inductor's own flags."""

import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import torch._inductor.config as config
from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
from torch._inductor.cpu_vec_isa import pick_vec_isa

# What a kernel of one thread has no use for, and debug symbols.
LEFT_OUT = {"-fopenmp", "-lgomp", "-liomp5", "-lomp", "-g1"}


def _command(folder, bits):
    with config.patch({"cpp.simdlen": bits}):
        options = CppTorchDeviceOptions(vec_isa=pick_vec_isa(), device_type="cpu")
        builder = CppBuilder(name="kernel", sources=str(folder / "kernel.cpp"),
                             BuildOption=options, output_dir=str(folder))  # fmt: skip
    command = [word for word in shlex.split(builder.get_command_line()) if word not in LEFT_OUT]
    # ATen's kernels tell the zeros apart.
    return [*command, "-fsigned-zeros", "-w"], builder.get_target_file_path()


def build(source, path, bits, verify):
    """Compile C++ into the library at `path`: aside, then put there at once if `verify` of its
    path there raises nothing.

    The library's digest follows it in the file, so that a damaged one is recognized. Raises
    RuntimeError with what the compiler said.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="building-") as name:
        folder = Path(name)
        (folder / "kernel.cpp").write_text(source)
        command, made = _command(folder, bits)
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout[-2000:]}")
        verify(made)
        library = Path(made).read_bytes()
        (folder / "whole").write_bytes(library + hashlib.sha256(library).digest())
        os.replace(folder / "whole", path)
