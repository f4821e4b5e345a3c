"""The environment's variables: one table, in settings.py and in README."""

import re
from pathlib import Path

import pytest

from dtorch_mpi import settings

ROOT = Path(__file__).parents[2]


def test_readme_has_each_and_no_other():
    rows = re.findall(r"^\| `(DTORCH_\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == set(settings.VARIABLES)


def test_each_that_the_code_reads_is_one_of_them():
    files = [ROOT / "setup.py", *(ROOT / "dtorch_mpi").rglob("*.py"), *(ROOT / "src").rglob("*.h"),
             *(ROOT / "src").rglob("*.cpp"), *(ROOT / "src").rglob("*.pyx")]
    read = re.compile(r"""(?:environ[^\n]{0,9}|getenv\()['"](DTORCH_\w+)['"]""")
    found = {name for path in files for name in read.findall(path.read_text())}
    assert found
    assert found <= settings.VARIABLES


@pytest.mark.parametrize("name, hint", [
    ("DTORCH_WORKER", "; did you mean DTORCH_WORKERS?"), ("DTORCH_QUX", "")])
def test_unknown_variables_warn(name, hint, monkeypatch):
    monkeypatch.setenv(name, "2")
    with pytest.warns(UserWarning, match=f"{name} is set, but .* such setting{re.escape(hint)}$"):
        settings.from_environment()


@pytest.mark.parametrize("name, value, expected", [
    ("cuda_graphs", "maybe", "1 or 0"), ("workers", 1.5, "a whole number"),
    ("cohost", 2, "1 or 0")])  # fmt: skip
def test_what_is_of_another_type(name, value, expected):
    with pytest.raises(TypeError, match=f"^{name} is {value!r}: expected {expected}"):
        settings.from_environment(**{name: value})
