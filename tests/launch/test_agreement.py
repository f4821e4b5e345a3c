import subprocess
import sys

import pytest

from dtorch_mpi.launch.agreement import disagreements

SCRIPT = """\
import os, socket, sys
from mpi4py import MPI
from dtorch_mpi.launch.agreement import check_agreement
try:
    check_agreement(MPI.COMM_WORLD)
except RuntimeError as error:
    open(sys.argv[1] + f"/{MPI.COMM_WORLD.rank}", "w").write(str(error))
else:
    open(sys.argv[1] + f"/{MPI.COMM_WORLD.rank}", "w").write("agreed")
"""


def run(mpirun, environment, folder, scripts):
    out = folder / "out"
    out.mkdir()
    command = [mpirun]
    for number, path in enumerate(scripts):
        command += [":"] * (number > 0) + ["-n", "1", sys.executable, str(path), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=80)
    assert done.returncode == 0, done.stderr
    return [(out / str(rank)).read_text() for rank in range(len(scripts))]


@pytest.mark.timeout(100)
def test_one_rank_with_another_script(mpirun, environment, tmp_path):
    script, changed = tmp_path / "train.py", tmp_path / "copied.py"
    script.write_text(SCRIPT)
    changed.write_text(SCRIPT + "# changed\n")
    texts = run(mpirun, environment, tmp_path, [script, changed, script])
    assert texts[0] == texts[1] == texts[2]
    assert "rank 1 on host" in texts[0] and str(changed) in texts[0] and str(script) in texts[0]
    assert "rank 2 on" not in texts[0]


@pytest.mark.timeout(100)
def test_copies_of_one_script_agree(mpirun, environment, tmp_path):
    script, copy = tmp_path / "train.py", tmp_path / "copied.py"
    script.write_text(SCRIPT)
    copy.write_text(SCRIPT)
    assert run(mpirun, environment, tmp_path, [script, copy]) == ["agreed", "agreed"]


def rank(host, **facts):
    sound = {"dtorch-mpi": "1", "torch": "2.13.0", "python": "3.11.7", "script": "ab"}
    return {"host": host, "path": "/x/train.py", "facts": {**sound, **facts}}


def test_each_subject_is_told():
    assert disagreements([rank("a"), rank("b")]) == []
    lines = disagreements([rank("a"), rank("b"), rank("c", torch="2.11.0"),
                           rank("d", python="3.12.1")])
    assert lines == ["rank 2 on host c has torch 2.11.0; rank 0 on host a has 2.13.0",
                     "rank 3 on host d has python 3.12.1; rank 0 on host a has 3.11.7"]


def test_of_two_ranks_the_first_is_taken_as_right():
    assert disagreements([rank("a", torch="1"), rank("b", torch="2")]) == [
        "rank 1 on host b has torch 2; rank 0 on host a has 1"]


def test_many_differences_are_counted():
    lines = disagreements([rank("a")] * 30 + [rank("b", torch="1")] * 20)
    assert len(lines) == 9
    assert lines[-1] == "and 12 more ranks differ in torch"
