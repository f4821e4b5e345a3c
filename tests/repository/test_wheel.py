"""The wheel works by itself, away from the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import dtorch_mpi as dt

PACKAGE = Path(dt.__file__).parent
ROOT = PACKAGE.parent
NOT_SHIPPED = {"README.md"}
PROGRAM = """
import torch
import dtorch_mpi as dt

mesh = dt.init_device_mesh((dt.num_workers(),))
x = dt.distribute_tensor(torch.arange(6.0).view(3, 2), mesh, [dt.Shard(0)])
print(dt.__file__, dt.num_workers(), (x @ x.T).sum().item())
"""


def run(command, cwd, **settings):
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=100,
                           cwd=cwd, env=os.environ | settings)  # fmt: skip
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Of the extensions that are built: to compile them again would take minutes."""
    folder = tmp_path_factory.mktemp("wheel")
    built = folder / "lib" / "dtorch_mpi"
    built.mkdir(parents=True)
    for extension in PACKAGE.glob("*.so"):
        shutil.copy2(extension, built)
    # Options of commands that are not run by themselves: `build` would compile.
    (folder / "options.cfg").write_text(
        f"[build]\nbuild_base = {folder}\nbuild_lib = {folder / 'lib'}\n"
        f"[egg_info]\negg_base = {folder}\n"
    )
    run([sys.executable, "setup.py", "--quiet", "build_py", "bdist_wheel", "--skip-build",
         "--bdist-dir", folder / "bdist", "--dist-dir", folder],
        ROOT, DIST_EXTRA_CONFIG=str(folder / "options.cfg"))  # fmt: skip
    [made] = folder.glob("*.whl")
    return made


def test_it_has_the_whole_package(wheel):
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name not in NOT_SHIPPED
    }  # fmt: skip
    assert shipped == expected, sorted(shipped ^ expected)
    assert "dtorch_mpi/fusion/compiler/__main__.py" in shipped


def test_a_program_runs_with_it_elsewhere(wheel, tmp_path):
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "program.py").write_text(PROGRAM)
    run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel],
        elsewhere)  # fmt: skip
    out = run(["mpirun", "-n", 3, sys.executable, "-m", "dtorch_mpi", "run", "program.py"],
              elsewhere, PYTHONPATH=str(site))  # fmt: skip
    assert out.split() == [str(site / "dtorch_mpi" / "__init__.py"), "2", "117.0"]
