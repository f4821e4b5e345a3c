"""Workers that never answer: the watchdog ends the job and says which one it was, and where."""

import re

import pytest
import stuck_kernels  # noqa: F401 -- registers kernels
import torch
from ending_jobs import as_nodes, reports, run_to_its_end
from worker_kernels import slow

import dtorch_mpi as dt
from dtorch_mpi.watching.watchdog import Standstill

WAITS = """import stuck_kernels, torch, dtorch_mpi as dt
dt.init(watchdog_seconds=2)
mesh = dt.init_device_mesh((dt.num_workers(),))
x = dt.kernels.call("tests.hang", [1, "{how}"], sizes=[mesh.size()], dtype=torch.float32, mesh=mesh, placements=[dt.Shard(0)])
print(x.sum().item())
"""  # noqa: E501 -- one line, for Python's traceback and ours to agree on


@pytest.mark.timeout(90)
def test_kernel_that_never_ends_with_workers_on_two_nodes(tmp_path):
    ended = run_to_its_end(tmp_path, WAITS.format(how="loop"), workers=3,
                           options=as_nodes("n1", "n2", ranks=3))  # fmt: skip
    assert ended.code != 0
    (report,) = reports(ended.err)
    assert re.match(r"rank 2 of 4 on host \S+ is stuck: for \d s in kernel tests.hang, issued at "
                    r"\S+script.py:5 in <module>; the watchdog ended it "
                    r"\(DTORCH_WATCHDOG_SECONDS=2\)\n", report), ended.err  # fmt: skip
    assert "rank 1 waits for other workers in a collective, issued at" in report
    assert "the system's view of thread" in report
    assert "stuck_kernels.py\", line" in report and "_worker.cpython" in report


@pytest.mark.timeout(90)
def test_worker_that_is_stopped(tmp_path):
    ended = run_to_its_end(tmp_path, WAITS.format(how="stop"), workers=2)
    assert ended.code != 0
    (report,) = reports(ended.err)
    assert report.startswith("rank 2 of 3 on host "), ended.err
    assert "is stuck: stopped by a signal (SIGSTOP, say) for 2 s, in kernel tests.hang" in report
    assert "script.py:5 in <module>" in report


@pytest.mark.timeout(60)
def test_kernel_that_never_ends_in_a_worker_thread(tmp_path):
    ended = run_to_its_end(tmp_path, WAITS.format(how="loop"), workers=2, launcher="thread")
    assert ended.code == 1
    assert re.search(r"worker 1 of 2 on host \S+ is stuck: for \d s in kernel tests.hang, issued "
                     r"at \S+script.py:5 in <module>; the watchdog ended it", ended.err), ended.err
    assert "stuck_kernels.py\", line" in ended.err and "_worker.cpython" in ended.err


@pytest.fixture
def impatient():
    dt.shutdown()
    dt.init(workers=2, watchdog_seconds=1)
    yield
    dt.shutdown()


@pytest.mark.timeout(60)
def test_busy_workers_are_not_stuck(impatient):
    total = torch.zeros(2, device="dtorch")
    for _ in range(4):  # replayed before long
        for _ in range(3):
            total = total + slow(0.2)
        total.to_torch()
    assert total.to_torch().tolist() == [36.0, 36.0]
    dt.kernels.call("tests.long", [1.6], sizes=[1], dtype=torch.float32).to_torch()


def test_only_time_in_which_somebody_looks_counts():
    stood = Standstill(longest=1)
    assert stood.look(0.0, {"a": 5, "b": None}) == {"a": 0, "b": 0}
    assert stood.look(0.5, {"a": 5, "b": None}) == {"a": 0.5, "b": 0}
    assert stood.look(9.0, {"a": 5, "b": 1}) == {"a": 1.5, "b": 0}
    assert stood.look(9.5, {"a": 6, "b": 1}) == {"a": 0, "b": 0.5}
