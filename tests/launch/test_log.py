"""What jobs log, and where."""

import logging
import os
import re

import pytest
from launching import run_job

import dtorch_mpi as dt
from dtorch_mpi import log
from dtorch_mpi.launch.environment import Launch
from dtorch_mpi.settings import Settings

JOB = "import dtorch_mpi; dtorch_mpi.init()"
CPUS = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    log.configure(Settings(), None)
    log.LOGGER.setLevel(logging.NOTSET)


def test_job_of_ranks(tmp_path):
    """What rank 0 shows, what all ranks keep in files, and a warning of too many threads."""
    ended = run_job("-c", JOB, launcher="mpirun", workers=2, settings={
        "DTORCH_LOG": "info", "DTORCH_LOG_FOLDER": str(tmp_path), "OMP_NUM_THREADS": str(CPUS + 1)})
    assert ended.code == 0
    first, second = ended.err.splitlines()
    assert re.fullmatch(
        r"\[rank 0/3 \S+\] INFO dtorch_mpi: dtorch-mpi 0.1.0: 2 workers on 1 host, "
        r"on CPUs \(no GPU seen\), "
        rf"{CPUS + 1} threads each \(from OMP_NUM_THREADS\), "
        "values come back by shared memory", first)
    assert re.match(r"\[rank 0/3 \S+\] WARNING dtorch_mpi: 2 workers on host ", second)
    assert "set OMP_NUM_THREADS=" in second
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(files) == ["rank00000.log", "rank00001.log", "rank00002.log"]
    assert "2 workers on 1 host" in files["rank00000.log"]
    assert f"worker 1: cpu, {CPUS + 1} threads an operator, CPUs " in files["rank00002.log"]


def records_of(launch, capfd, **settings):
    # As in a program: pytest has handlers of its own at the root.
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        log.configure(Settings(**settings), launch)
        log.LOGGER.info("all is well")
        log.LOGGER.warning("nearly all")
    finally:
        root.handlers = handlers
    return capfd.readouterr().err


@pytest.mark.parametrize("rank, settings, shown", [
    (0, {}, ["nearly all"]),
    (0, {"log": "INFO"}, ["all is well", "nearly all"]),
    (3, {"log": "info"}, []),
    (3, {"log": "info", "log_ranks": "1, 3"}, ["all is well", "nearly all"]),
    (3, {"log": "error", "log_ranks": "all"}, []),
])
def test_who_shows_what(rank, settings, shown, capfd):
    text = records_of(Launch(8, rank, "srun", ()), capfd, **settings)
    assert [line.split("dtorch_mpi: ")[1] for line in text.splitlines()] == shown
    assert all(line.startswith(f"[rank {rank}/8 ") for line in text.splitlines())


def test_without_prefix(capfd):
    """As for srun --label, and in a process that has no other ranks."""
    assert records_of(Launch(8, 0, "srun", ()), capfd, log_prefix=False).startswith("WARNING ")
    assert records_of(None, capfd).startswith("WARNING ")


def test_a_programs_own_handlers_get_it_instead(caplog, capfd):
    dt.shutdown()
    caplog.set_level(logging.INFO, "dtorch_mpi")
    dt.init()
    assert "1 worker on 1 host" in caplog.text
    assert capfd.readouterr().err == ""
    dt.shutdown()


@pytest.mark.parametrize("wrong", [{"log": "loud"}, {"log_ranks": "0,first"}])
def test_wrong_settings(wrong):
    with pytest.raises(ValueError, match="expected .*DTORCH_LOG"):
        Settings(**wrong)
