"""How far the client may run ahead of the workers, and that nothing grows on the way."""

import pytest
from launching import run_job

SAMPLER = """
import resource, sys, threading, time
import torch, dtorch_mpi as dt
from worker_kernels import slow

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

most = {"records": 0, "bytes": 0, "resident": 0}
done = threading.Event()

def sample():
    while not done.is_set():
        now = dt.debug.counters()
        most["records"] = max(most["records"], now["records_issued"] - now["records_executed"])
        most["bytes"] = max(most["bytes"], now["bytes_issued"] - now["bytes_executed"])
        most["resident"] = max(most["resident"], resident())
        time.sleep(0.0005)

dt.init()
x = torch.ones(8, device="dtorch") + 1
dt.sync()
"""


@pytest.fixture
def job(tmp_path):
    def run(body, **options):
        script = tmp_path / "script.py"
        script.write_text(SAMPLER + body)
        ended = run_job(script, **options)
        assert ended.code == 0, ended.err
        return ended

    return run


def test_records_under_way_are_bounded(job):
    job(
        """
threading.Thread(target=sample, daemon=True).start()
began = time.monotonic()
waits = slow(1.0)
for _ in range(20_000):
    x = x + 1
assert time.monotonic() - began > 0.9, "the client did not wait for room"
assert x.to_torch().tolist() == [20_002.0] * 8
done.set()
# An operator's record, the freeing of its argument, and definitions pass the bound together.
assert 1000 <= most["records"] <= 2000 + 16, most
""",
        settings={"DTORCH_MAX_RECORDS": "2000"},
    )


def test_bytes_under_way_are_bounded_and_uploads_count(job):
    job(
        """
piece = torch.ones(1 << 18)  # 1 MiB
before = resident()
threading.Thread(target=sample, daemon=True).start()
began = time.monotonic()
waits = slow(1.0)
for _ in range(300):
    x = piece.to("dtorch")
assert time.monotonic() - began > 0.9, "the client did not wait for room"
assert x.sum().item() == 1 << 18
done.set()
assert (8 << 20) <= most["bytes"] <= (17 << 20), most
assert most["resident"] - before < (80 << 20), (most, before)
""",
        settings={"DTORCH_MAX_BYTES": str(16 << 20)},
    )


def test_a_value_larger_than_the_bound_passes(job):
    job(
        """
large = torch.ones(1 << 20).to("dtorch")
assert large.sum().item() == 1 << 20
assert (large + 1).sum().item() == 2 << 20
""",
        settings={"DTORCH_MAX_BYTES": str(1 << 20)},
    )


def test_a_million_operators_leave_memory_flat(job):
    job(
        """
b = torch.full((8, 8), 1e-3, device="dtorch")
x = torch.ones(8, 8, device="dtorch")

def work(count):
    global x
    for step in range(count // 5):
        x = x + b
        x = x * 0.999
        x[1:].add_(b[0])
        x = x.t()
    x.to_torch()

work(100_000)
before = resident()
slots = dt.debug.counters()["live_slots"]
work(1_000_000)
grown = resident() - before
assert grown < (4 << 20), f"{grown} bytes more"
assert dt.debug.counters()["live_slots"] == slots
assert bool(torch.isfinite(x).all())
""",
        limit=110,
    )
