"""The oracle is the python command itself: run each thing both ways and compare."""

import subprocess
import sys

import pytest

from dtorch_mpi.launch import script

SHOW = """\
import sys, json, pickle
class Local: pass
print(json.dumps([sys.argv, sys.path[0], __name__, __spec__ and __spec__.name,
                  globals().get("__file__"), __package__, sys.modules["__main__"].Local is Local]))
pickle.loads(pickle.dumps(Local()))
import beside
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "code" / "package").mkdir(parents=True)
    (tmp_path / "code" / "show.py").write_text(SHOW)
    (tmp_path / "code" / "beside.py").write_text("print('beside')\n")
    (tmp_path / "code" / "package" / "__init__.py").write_text("print('package imported')\n")
    (tmp_path / "code" / "package" / "__main__.py").write_text(SHOW)
    (tmp_path / "code" / "package" / "part.py").write_text(SHOW)
    (tmp_path / "link.py").symlink_to("code/show.py")
    return tmp_path


@pytest.mark.parametrize("cwd, argv", [
    (".", ["code/show.py", "-x", "1"]),
    (".", ["link.py"]),
    ("code", ["show.py", "-m", "y"]),
    ("code", ["-m", "show", "--flag"]),
    ("code", ["-m", "package", "a"]),
    ("code", ["-m", "package.part"]),
    ("code", ["-c", SHOW, "a", "-c"]),
])
@pytest.mark.timeout(30)
def test_as_python_does(cwd, argv, folder, environment):
    code = "import sys; from dtorch_mpi.launch.script import run_script; run_script(sys.argv[1:])"
    runs = [subprocess.run([sys.executable, *start, *argv], cwd=folder / cwd, env=environment,
                           capture_output=True, text=True, timeout=20)
            for start in ([], ["-c", code])]
    assert [run.returncode for run in runs] == [0, 0], runs[1].stderr
    # __package__ of a script is None or "" by the version of Python.
    plain, ours = (run.stdout.replace('null, null, true', 'null, "", true') for run in runs)
    assert ours.replace('"", true', "null, true") == plain.replace('"", true', "null, true")


@pytest.mark.parametrize("code, expected", [
    ("import sys; sys.exit(7)", 7), ("raise ValueError('here')", 1), ("raise SystemExit", 0)])
@pytest.mark.timeout(30)
def test_exit_codes_pass_through(code, expected, folder, environment):
    (folder / "leave.py").write_text(code)
    start = "from dtorch_mpi.launch.script import run_script; run_script(['leave.py'])"
    done = subprocess.run([sys.executable, "-c", start], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=20)
    assert done.returncode == expected
    assert ("leave.py\", line 1" in done.stderr) == (expected == 1)


@pytest.mark.parametrize("argv, error, text", [
    ([], ValueError, "nothing to run"),
    (["-m"], ValueError, "-m needs a module"),
    (["-x", "s.py"], ValueError, "got option '-x'"),
    (["missing.py"], FileNotFoundError, "missing.py"),
    (["-m", "no_such.module"], FileNotFoundError, "no_such.module"),
])
def test_faults(argv, error, text):
    with pytest.raises(error, match=text):
        script.prepare(argv)


@pytest.mark.timeout(30)
def test_preparing_a_module_runs_none_of_the_users_code(folder, environment):
    code = "from dtorch_mpi.launch import script; script.prepare(['-m', 'package.part'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder / "code", env=environment,
                          capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == ""
