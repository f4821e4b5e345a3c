"""Compiles a fused kernel's Triton for a GPU, which need not be there."""

import dataclasses
import hashlib
import importlib.util
import json
import os
import re
import tempfile
from pathlib import Path

MOST_SHARED = 48 << 10  # bytes that a kernel may have without asking for more


def _function(folder, text):
    """The program's function. Triton reads its text in the file."""
    path = folder / "dtorch_fused_kernel.py"
    path.write_text(text)
    found = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.dtorch_fused


def _compile(function, source, variant, target):
    """(machine code, how it is launched)."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDAOptions
    from triton.compiler import ASTSource

    names = list(source.signature)
    constants = {"ROWS": variant.rows, "COLUMNS": variant.columns}
    options = {"num_warps": variant.num_warps, "enable_fp_fusion": False}
    if "enable_reflect_ftz" in {field.name for field in dataclasses.fields(CUDAOptions)}:
        options["enable_reflect_ftz"] = False  # ATen's kernels keep the smallest numbers
    made = triton.compile(
        ASTSource(function, source.signature | dict.fromkeys(constants, "constexpr"), constants,
                  {(at,): [["tt.divisibility", 16]] for at in source.aligned}),
        target=GPUTarget("cuda", target["capability"], 32), options=options,
    )  # fmt: skip
    told = made.metadata
    needed = [told.global_scratch_size, getattr(told, "profile_scratch_size", 0)]
    if any(needed) or told.shared > MOST_SHARED or told.num_ctas != 1:
        raise ValueError(f"a kernel that needs more than a plain launch: {told}")
    name = re.escape(told.name)
    parameters = len(re.findall(rf"\.param [^,\n]* {name}_param_\d+", made.asm["ptx"]))
    if parameters < len(names):
        raise ValueError(f"Triton took {len(names) - parameters} of {names} out of the kernel")
    return made.asm["cubin"], {
        "name": told.name, "rows": variant.rows, "columns": variant.columns,
        "threads": 32 * told.num_warps, "shared": told.shared,
        "scratch": parameters - len(names), "bytes": len(made.asm["cubin"]),
    }  # fmt: skip


def build(source, path, target):
    """Compile a Source (triton_source.py) into the file at `path`, put there at once: a line of
    JSON that says how to launch it, the machine code of each variant, the program, and a digest.

    target: {"capability": 10 times major plus minor}. ValueError for what would fail again.
    """
    path = Path(path)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="building-") as name:
        folder = Path(name)
        os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
        function = _function(folder, source.text)
        made = [_compile(function, source, variant, target) for variant in source.variants]
        head = {"images": [told for _, told in made], "signature": source.signature}
        whole = b"".join([json.dumps(head).encode(), b"\n", *(code for code, _ in made),
                          source.text.encode()])  # fmt: skip
        (folder / "whole").write_bytes(whole + hashlib.sha256(whole).digest())
        os.replace(folder / "whole", path)
