"""A spread sample of PyTorch's operator database, forward and backward, on three layouts.

scripts/opdb_coverage.py runs all of it. A fixed seed picks the operators; each is tried on its
first samples. RANDOM operators' values are tested in their own files.
"""

import random

import pytest
import torch

import dtorch_mpi as dt

pytest.importorskip("expecttest", reason="pip install expecttest: PyTorch's own databases need it")

from opdb_cases import (  # noqa: E402
    RANDOM,
    attempt,
    cases,
    layouts_of,
    name_of,
    operators,
    placed,
    placing_on,
    read,
)

PICKED = 110
SHAPES = {"device": (1, None), "mesh": (4, (2, 2)), "uneven": (3, (3,))}


def picked():
    known = [op for op in operators(torch.float32) if op.name not in RANDOM]
    return sorted(random.Random(5).sample(known, PICKED), key=name_of)


def faults_of(op, layout, kind, place, count):
    for sample, expected, _ in cases(op, torch.float32, kind, count):
        for row in layouts_of(sample, layout):
            given = placed(sample, row, place, "dtorch")
            outcome = attempt(op, sample, expected, given, kind, read, place)
            if outcome.kind != "right":
                yield f"{name_of(op)} {row}: {outcome.kind} {outcome.detail}"


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # PyTorch's, on operators that it is to drop
@pytest.mark.parametrize("layout", SHAPES)
def test_a_sample_of_the_database(layout):
    workers, shape = SHAPES[layout]
    dt.shutdown()
    dt.init(workers=workers)
    place = placing_on(shape and dt.init_device_mesh(shape))
    faults = []
    for op in picked():
        faults += faults_of(op, layout, "backward", place, 2)
    for kind in ("inplace", "out"):
        known = [op for op in operators(torch.float32, kind) if op.name not in RANDOM]
        for op in random.Random(6).sample(known, 30):
            faults += faults_of(op, layout, kind, place, 1)
    dt.shutdown()
    assert not faults, "\n".join(faults)
