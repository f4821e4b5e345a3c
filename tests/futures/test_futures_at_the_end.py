"""Futures that the program still holds when the job ends, and those that the collector takes."""

import pytest
from launching import run_job

MADE = """
import gc, sys, torch, dtorch_mpi as dt
dt.init()
small = torch.ones(4, device="dtorch").to_torch_async()
large = torch.ones(3_000_000, device="dtorch").to_torch_async()
synced = dt.sync_future()
"""
ENDINGS = {
    "held": ("", ""),
    "in a cycle": ("held = [small, large, synced]\nheld.append(held)\n"
                   "small = large = synced = held = None\ngc.collect()\nprint('collected')",
                   "collected\n"),
    "read later": ("dt.shutdown()\nprint(small.get().sum().item(), large.get().sum().item())\n"
                   "print(synced.is_ready(), synced.get())",
                   "4.0 3000000.0\nTrue None\n"),
}  # fmt: skip


@pytest.mark.parametrize("ending", [
    pytest.param(name, marks=pytest.mark.sweep if name == "in a cycle" else ()) for name in ENDINGS
])  # fmt: skip
@pytest.mark.parametrize(("launcher", "home"), [
    ("thread", None), ("mpirun", "shared"), ("mpirun", "network"),
])  # fmt: skip
@pytest.mark.timeout(150)
def test_futures_at_the_end(ending, launcher, home, tmp_path):
    body, expected = ENDINGS[ending]
    script = tmp_path / "script.py"
    script.write_text(MADE + body)
    ended = run_job(script, launcher=launcher, home=home, limit=120)
    assert (ended.code, ended.out, ended.err) == (0, expected, "")
