"""The public API has types, and the stubs of compiled modules say what is in them."""

import inspect
import os
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import dtorch_mpi as dt

FOLDER = Path(dt.__file__).parent
COMPILED = sorted(f"dtorch_mpi.{path.name.partition('.')[0]}" for path in FOLDER.glob("_*.so"))
# What Cython and pybind11 add of their own.
ALLOWED = r"""
dtorch_mpi\.\w+\.__test__
dtorch_mpi\.\w+\.__(reduce|setstate)_cython__
dtorch_mpi\._collectives\.Thread(Group|Groups)
dtorch_mpi\._controller\.SendOrder\.__init__
"""


def test_each_compiled_module_has_a_stub():
    stubs = {f"dtorch_mpi.{path.stem}" for path in FOLDER.glob("_*.pyi")}
    assert len(COMPILED) >= 7
    # Those of MPI are not built where there is none.
    assert stubs - set(COMPILED) <= {"dtorch_mpi._mpi", "dtorch_mpi._mpi_collectives"}
    assert set(COMPILED) <= stubs
    assert (FOLDER / "py.typed").exists()


def test_stubs_are_as_the_modules(tmp_path):
    (tmp_path / "allowed.txt").write_text(ALLOWED)
    stubs = tmp_path / "dtorch_mpi"  # alone: mypy need not read the package
    stubs.mkdir()
    (stubs / "__init__.pyi").touch()
    for stub in FOLDER.glob("_*.pyi"):
        shutil.copy(stub, stubs)
    ended = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "--concise", "--ignore-disjoint-bases",
         "--ignore-unused-allowlist", "--allowlist", tmp_path / "allowed.txt",
         "--mypy-config-file", FOLDER.parent / "pyproject.toml", *COMPILED],
        capture_output=True, text=True, timeout=110, cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(tmp_path), "PYTHONPATH": str(FOLDER.parent)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr


def public(module, names):
    """(name, function) of functions and of classes' public methods that are dtorch_mpi's own."""
    for name in names:
        found = getattr(module, name)
        if inspect.isclass(found) and found.__module__.startswith("dtorch_mpi"):
            for method, function in vars(found).items():
                named = not method.startswith("_") or method in ("__init__", "__enter__", "__len__")
                if named and inspect.isfunction(function):
                    yield f"{name}.{method}", function
        elif inspect.isfunction(inspect.unwrap(found) if callable(found) else found):
            yield name, inspect.unwrap(found)


@pytest.mark.parametrize("module", [dt, dt.checkpoint, dt.data, dt.debug, dt.kernels],
                         ids=lambda module: module.__name__)  # fmt: skip
def test_public_functions_say_their_types(module):
    names = getattr(module, "__all__", None) or [
        name for name, found in vars(module).items()
        if not name.startswith("_") and getattr(found, "__module__", "") == module.__name__
    ]  # fmt: skip
    found = dict(public(module, names))
    assert found
    for name, function in found.items():
        parameters = set(inspect.signature(function).parameters) - {"self", "cls"}
        lacking = (parameters | {"return"}) - set(typing.get_type_hints(function))
        assert not lacking, f"{module.__name__}.{name} has no type for {sorted(lacking)}"
