"""Triton's compiler takes what is written for it, for GPUs that are not here."""

import hashlib
import json
import sys
import time
from pathlib import Path

import pytest

import dtorch_mpi
from dtorch_mpi.fusion.compile_process import CompileProcess

pytest.importorskip("triton", reason="the compiler that is tested")

COMPILER = Path(dtorch_mpi.__file__).parent / "fusion" / "compiler"
sys.path.insert(0, str(COMPILER))

from expressions import EXPRESSIONS  # noqa: E402
from reductions import REDUCTIONS  # noqa: E402

sys.path.remove(str(COMPILER))


def compiled(folder, spec, capability):
    """(what is said of the kernel, the rest of its file)."""
    path = folder / f"{capability}.cubin"
    process = CompileProcess(folder, nice=0)
    process.request(path, spec, {"capability": capability})
    began = time.monotonic()
    while not (answers := process.answers()):
        assert time.monotonic() - began < 100
        time.sleep(0.05)
    process.stop()
    assert answers == [(str(path), "")]
    data = path.read_bytes()
    assert hashlib.sha256(data[:-32]).digest() == data[-32:]
    head, _, rest = data[:-32].partition(b"\n")
    return json.loads(head), rest


def every_operator(dtype):
    """A kernel of all operators there are of a dtype, on the same inputs."""
    import torch

    nodes, dtypes = [], []
    for name, expression in EXPRESSIONS.items():
        if not expression.allows(getattr(torch, dtype)):
            continue
        packet, _, overload = name.removeprefix("aten::").partition(".")
        schema = getattr(getattr(torch.ops.aten, packet), overload or "default")._schema
        arguments, tensors = [], 0
        for place, argument in enumerate(schema.arguments):
            if str(argument.type) != "Tensor":
                arguments.append(["number", 0])
            elif place in expression.masks:
                arguments.append(["input", 3])
            else:
                arguments.append(["input", tensors])
                tensors += 1
        if dtype == "bool" and ["number", 0] in arguments:
            continue
        nodes.append([name, arguments])
        dtypes.append(str(expression.result or dtype).removeprefix("torch."))
    number = {"bfloat16": ["float32"], "bool": []}.get(dtype, [dtype])
    return {"inputs": [[dtype, "whole"], [dtype, "spread"], [dtype, "one"], ["bool", "whole"]],
            "numbers": number, "nodes": nodes, "outputs": list(range(len(nodes))),
            "computes_in": dtype, "dtypes": dtypes, "writes": []}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int64", "bool"])
def test_every_operator(tmp_path, dtype):
    told, rest = compiled(tmp_path, every_operator(dtype), 90)
    (image,) = told["images"]
    assert rest.startswith(b"\x7fELF") and image["threads"] == 128 and image["columns"] == 1024
    assert b"def dtorch_fused(" in rest[image["bytes"] :]


@pytest.mark.parametrize("capability", [80, pytest.param(100, marks=pytest.mark.sweep)])
def test_every_reduction(tmp_path, capability):
    nodes = [[name, [["input", 0], ["input", 1]][: 2 if "backward" in name else 1]]
             for name in REDUCTIONS]  # fmt: skip
    spec = {"inputs": [["float32", "whole"]] * 2, "numbers": [], "nodes": nodes,
            "outputs": list(range(len(nodes))), "computes_in": "float32",
            "dtypes": ["float32"] * len(nodes), "writes": [],
            "extents": ["column" if REDUCTIONS[name][1] else "whole"
                        for name, _ in nodes]}  # fmt: skip
    told, rest = compiled(tmp_path, spec, capability)
    assert [image["columns"] for image in told["images"]] == [128, 1024, 4096, 16384]
    at = 0
    for image in told["images"]:
        assert rest[at:].startswith(b"\x7fELF") and image["shared"] <= 48 << 10
        at += image["bytes"]
