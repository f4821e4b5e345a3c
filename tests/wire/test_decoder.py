"""The batch decoder answers whatever it is given."""

import re
import subprocess
import sys
from pathlib import Path

FUZZ = Path(__file__).parents[2] / "scripts" / "fuzz_decoder.py"


def test_mutated_batches_end_in_an_error_or_a_valid_execution():
    ended = subprocess.run(
        [sys.executable, FUZZ, "--batches", "2000", "--seed", "2"], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-5000:]
    figures = dict(re.findall(r"(\w+)=(\d+)", ended.stdout))
    # The mutations reach far enough, and spare enough, to mean something.
    assert int(figures["operators"]) > 10_000
    assert int(figures["broken_off"]) > 100
    assert int(figures["clean"]) > 100 and int(figures["failed"]) > 1000
    assert int(figures["grown_mib"]) < 500
