"""Stages on meshes of their own work at the same time, on ranks of an MPI job."""

import re
from pathlib import Path

from launching import run_job


def test_two_stages_overlap():
    script = Path(__file__).with_name("pipeline.py")
    ended = run_job(script, launcher="mpirun", workers=2)
    assert ended.code == 0, ended.err
    overlap = float(re.search(r"overlap=(\S+)", ended.out).group(1))
    # A stage that waited for the other at every micro-batch would share nothing with it. Three
    # processes on two cores can't have all of it.
    assert overlap > 0.1, ended.out
