import os

import pytest

from dtorch_mpi.launch import cpus

FOUR, EIGHT = frozenset(range(4)), frozenset(range(8))


@pytest.mark.parametrize("mine, workers, controller, expected", [
    (FOUR, [FOUR, FOUR], frozenset(), 2),
    ({0}, [{0}] * 4, frozenset(), 1),
    (FOUR, [FOUR, {4, 5, 6, 7}], frozenset(), 4),  # CPUs of its own
    # A core for the controller where that costs no worker more than a quarter of its threads.
    (FOUR, [FOUR], FOUR, 3),
    (FOUR, [FOUR], {4, 5}, 4),
    (FOUR, [FOUR, FOUR], FOUR, 2),
    (EIGHT, [EIGHT, EIGHT], EIGHT, 3),
    ({0, 1}, [{0, 1}], {0, 1}, 2),
])
def test_threads_from_the_affinity_mask(mine, workers, controller, expected, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: mine)
    threads = cpus.worker_threads(0, workers, controller)
    assert threads == (expected, "the affinity mask")


def test_settings_of_threads_decide(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7,2")
    assert cpus.worker_threads(0, [FOUR]) == (7, "OMP_NUM_THREADS")
    assert cpus.worker_threads(5, [FOUR]) == (5, "DTORCH_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(ValueError, match="OMP_NUM_THREADS='many'"):
        cpus.worker_threads(0, [FOUR])


def test_ranges():
    assert cpus.ranges({3, 0, 1, 2, 8}) == "0-3,8"
