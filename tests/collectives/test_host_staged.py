"""Collectives of tensors on accelerators by way of host memory, on a simulated GPU.

Each run has processes of its own: whoever loads the simulated GPU has a GPU from then on.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

if torch.version.cuda is not None or torch.version.hip is not None:
    pytest.skip("simulated GPUs need a build of torch for CPUs", allow_module_level=True)

from dtorch_mpi._collectives import ThreadGroup, host_staged

from . import staged_members

ROOT = Path(__file__).parents[len(__package__.split("."))]


@functools.cache
def run_of(size):
    """(failures by case, None), or (None, what went wrong)."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "results.json"
        paths = [str(ROOT), str(Path(sys.modules["dtorch_mpi"].__path__[0]).parent)]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(
            [sys.executable, "-m", f"{__package__}.staged_members", output, str(size)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=400)
        if done.returncode != 0 or not output.exists():
            return None, f"{size} threads ended with {done.returncode}:\n{done.stdout[-4000:]}"
        return json.loads(output.read_text()), None


@pytest.mark.timeout(450)  # the first builds the simulated GPU
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", staged_members.cases(3))
def test_conformance(name, size):
    if name not in staged_members.cases(size):
        pytest.skip("needs more members")
    found, failure = run_of(size)
    assert failure is None, failure
    assert found[name] is None, found[name]


@pytest.mark.timeout(450)
def test_conformance_of_ranks():
    """Over MPI; one of the tests here, for the cases are those above."""
    pytest.importorskip("dtorch_mpi._mpi_collectives", reason="built without MPI")
    from .test_mpi_backend import results

    found = results(2, "--host-staged", "--without-large", seconds=400)
    failures = {name: case["failures"] for name, case in found.items() if case["failures"]}
    assert not failures, failures
    assert len(found) > 100


def test_needs_a_backend_of_ours_and_an_accelerator():
    gloo = torch.distributed.ProcessGroupGloo(torch.distributed.HashStore(), 0, 1)
    with pytest.raises(TypeError, match="got the backend gloo, expected one of ThreadGroup or"):
        host_staged(gloo, torch.device("cuda", 0))
    backend = ThreadGroup(1).backend(0)
    for device in "cpu", "cuda":
        with pytest.raises(ValueError, match=f"the device is {device}, expected an accelerator"):
            host_staged(backend, torch.device(device))
