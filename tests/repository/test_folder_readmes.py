"""A folder of more than three modules has a README.md that names each of them, and no others."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {".py", ".pyx", ".pxd", ".pxi", ".cpp", ".h", ".sh"}


def modules(folder):
    """Names of the folder's sources; a header and its source are one module."""
    found = set()
    for path in folder.iterdir():
        # In folders below the package it only says what the folder is.
        says_what_it_is = path.name == "__init__.py" and folder != ROOT / "dtorch_mpi"
        generated = path.name.endswith(".pyx.cpp")
        if path.suffix in SOURCES and not says_what_it_is and not generated:
            found.add(path.stem)
    return found


FOLDERS = [
    folder
    for top in ("dtorch_mpi", "src", "scripts")
    for folder in sorted([ROOT / top, *(ROOT / top).rglob("*/")])
    if folder.name != "__pycache__" and len(modules(folder)) > 3
]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_the_readme_names_each_module(folder):
    readme = folder / "README.md"
    assert readme.exists(), f"{readme} is missing: two lines on each of {sorted(modules(folder))}"
    named = re.findall(r"^- `(\w+)`: .+\n  Apart: .+$", readme.read_text(), re.MULTILINE)
    assert len(named) == len(set(named)), sorted(named)
    differing = set(named) ^ modules(folder)
    assert not differing, f"{readme}: left out, or gone and still there: {sorted(differing)}"


def test_there_are_such_folders():
    assert {ROOT / "dtorch_mpi", ROOT / "src" / "worker", ROOT / "scripts"} <= set(FOLDERS)
