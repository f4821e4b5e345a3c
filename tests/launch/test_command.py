import subprocess
import sys

import pytest

from dtorch_mpi.launch import command

RUN = [sys.executable, "-m", "dtorch_mpi", "run", "train.py", "--lr", "1"]
ARGV = ["train.py", "--lr", "1"]


def test_hydra_line():
    line, extra = command.launch_line(3, ARGV, "/x/mpirun", "mpich")
    assert line == ["/x/mpirun", "-n", "3", *RUN]
    assert extra == {}


@pytest.mark.parametrize("user, variables", [(0, 4), (1000, 0)])
def test_open_mpi_line(user, variables, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: user)
    line, extra = command.launch_line(3, ARGV, "/x/mpirun", "openmpi")
    assert line == ["/x/mpirun", "--oversubscribe", "--bind-to", "none", "-n", "3", *RUN]
    assert len(extra) == variables


@pytest.mark.parametrize("family, setting, plugin", [
    ("mpich", None, "pmi2"), ("openmpi", None, "pmix"), ("openmpi", "pmix_v4", "pmix_v4")])
def test_srun_line(family, setting, plugin, monkeypatch):
    monkeypatch.delenv("DTORCH_SRUN_MPI", raising=False)
    if setting:
        monkeypatch.setenv("DTORCH_SRUN_MPI", setting)
    line, _ = command.launch_line(5, ARGV, "/usr/bin/srun", family)
    assert line == ["/usr/bin/srun", f"--mpi={plugin}", "--kill-on-bad-exit=1", "-n", "5", *RUN]


def test_no_ranks():
    with pytest.raises(ValueError, match="got -n 0"):
        command.launch_line(0, ARGV, "/x/mpirun", "mpich")


def test_srun_is_taken_inside_an_allocation(tmp_path, monkeypatch):
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert command.find_launcher(None, {"SLURM_JOB_ID": "5"}) == str(srun)
    assert command.find_launcher(None, {}) != str(srun)


def test_unknown_launcher():
    with pytest.raises(FileNotFoundError, match="no launcher 'nosuchrun'"):
        command.find_launcher("nosuchrun")


def dtorch(*argv, environment, cwd):
    return subprocess.run([sys.executable, "-m", "dtorch_mpi", *argv], env=environment, cwd=cwd,
                          capture_output=True, text=True, timeout=40)


@pytest.fixture
def fake_mpirun(tmp_path):
    path = tmp_path / "mpirun"
    path.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "HYDRA build details:"; exit 0; fi\n'
        'printf "%s " "$@"; case "$*" in *killed*) kill -TERM $$;; esac; exit 42\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.timeout(60)
def test_launch_prints_and_becomes_the_launcher(fake_mpirun, environment, tmp_path):
    done = dtorch("launch", "-n", "3", "--launcher", fake_mpirun, "train.py", "-n", "9",
                  environment=environment, cwd=tmp_path)
    assert done.returncode == 42
    assert done.stdout.split()[:2] == ["-n", "3"]
    assert done.stdout.strip().endswith("-m dtorch_mpi run train.py -n 9")
    assert f"+ {fake_mpirun} -n 3" in done.stderr


@pytest.mark.timeout(60)
def test_launch_in_a_rank_is_refused(fake_mpirun, environment, tmp_path):
    inside = environment | {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}
    done = dtorch("launch", "-n", "3", "--launcher", fake_mpirun, "train.py",
                  environment=inside, cwd=tmp_path)
    assert done.returncode == 2
    assert "this process is rank 1 of 4 already, started by mpirun of Open MPI" in done.stderr


@pytest.mark.timeout(60)
def test_signals_pass_through(fake_mpirun, environment, tmp_path):
    done = dtorch("launch", "-n3", f"--launcher={fake_mpirun}", "-m", "killed",
                  environment=environment, cwd=tmp_path)
    assert done.returncode == -15


@pytest.mark.parametrize("argv, code, text", [
    (["--help"], 0, "launch -n N"),
    (["--version"], 0, "dtorch-mpi"),
    ([], 2, "{run,launch,info,doctor}"),
    (["walk"], 2, "invalid choice: 'walk'"),
    (["run"], 2, "SCRIPT"),
    (["run", "missing.py"], 2, "no script 'missing.py'"),
    (["launch", "train.py"], 2, "\npython -m dtorch_mpi launch: error: the following arguments"),
    (["launch", "-n", "2"], 2, "nothing to run"),
    (["launch", "-n", "x", "train.py"], 2, "invalid int value: 'x'"),
    (["launch", "-n", "2", "--launcher", "nosuchrun", "a.py"], 2, "no launcher 'nosuchrun'"),
])
@pytest.mark.timeout(60)
def test_command_line(argv, code, text, environment, tmp_path):
    done = dtorch(*argv, environment=environment, cwd=tmp_path)
    assert done.returncode == code
    assert text in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
