"""scripts/prepare_corpus.py, run as a user runs it."""

import hashlib
import platform
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "prepare_corpus.py"


def prepare(path, *options):
    return subprocess.run(
        [sys.executable, SCRIPT, path, *map(str, options)], capture_output=True, text=True
    )


@pytest.fixture
def source(tmp_path):
    """Twelve files, the n-th of which repeats the n-th letter, and some that must be skipped."""
    root = tmp_path / "source"
    for number in range(12):
        folder = root / ("early" if number < 5 else "late")
        folder.mkdir(parents=True, exist_ok=True)
        letter = chr(ord("a") + number)
        (folder / f"{letter}.py").write_text(letter * (20 + number))
    for skipped in ("test", "site-packages", "late/__pycache__"):
        (root / skipped).mkdir()
        (root / skipped / "x.py").write_text("#" * 100)
    (root / "notes.txt").write_text("#" * 100)
    (root / "late" / "link.py").symlink_to(root / "notes.txt")
    return root


def test_rows_are_the_text_in_order_with_one_byte_shared(tmp_path, source):
    path = tmp_path / "corpus.h5"
    ended = prepare(path, "--source", source, "--block", 8, "--held-out-every", 4)
    assert ended.returncode == 0, ended.stderr

    letters = [chr(ord("a") + number) for number in range(12)]
    texts = [letter * (20 + number) + "\0" for number, letter in enumerate(letters)]
    expected = {
        "train": "".join(text for number, text in enumerate(texts) if number % 4 != 3),
        "held_out": "".join(text for number, text in enumerate(texts) if number % 4 == 3),
    }
    with h5py.File(path) as file:
        assert set(file) == set(expected)
        for name, text in expected.items():
            rows = file[name][:]
            assert rows.dtype == np.uint8
            assert rows.shape == ((len(text) - 1) // 8, 9)
            assert (rows[1:, 0] == rows[:-1, -1]).all()
            joined = rows[0, :1].tobytes() + rows[:, 1:].tobytes()
            assert joined.decode() == text[: len(joined)]


def test_attributes_tell_what_the_file_holds(tmp_path, source):
    path = tmp_path / "corpus.h5"
    assert prepare(path, "--source", source, "--block", 16).returncode == 1  # 12 files, K = 20
    assert prepare(path, "--source", source, "--block", 16, "--held-out-every", 3).returncode == 0
    with h5py.File(path) as file:
        digest = hashlib.sha256(file["train"][:].tobytes() + file["held_out"][:].tobytes())
        assert file.attrs["sha256"] == digest.hexdigest()
        assert file.attrs["block"] == 16
        assert file.attrs["vocabulary"] == 256
        assert file.attrs["python"] == platform.python_version()
        assert "12 *.py files" in file.attrs["source"]


def test_the_standard_library_is_packed_the_same_twice(tmp_path):
    digests = []
    for name in ("first.h5", "second.h5"):
        ended = prepare(tmp_path / name)
        assert ended.returncode == 0, ended.stderr
        with h5py.File(tmp_path / name) as file:
            digests.append(file.attrs["sha256"])
            assert file["train"].shape[1] == 129
            held_out, train = len(file["held_out"]), len(file["train"])
            assert 0.01 < held_out / train < 0.2
            assert b"import" in file["train"][:1000].tobytes()
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--block", "0"], "expected at least 1"),
        (["--held-out-every", "1"], "expected at least 2"),
        (["--block", "5000"], "do not fill one row of 5001 bytes"),
    ],
)
def test_a_failure_says_why_and_leaves_the_old_file(tmp_path, source, options, text):
    path = tmp_path / "corpus.h5"
    path.write_bytes(b"old")
    ended = prepare(path, "--source", source, "--held-out-every", 4, *options)
    assert ended.returncode == 1
    assert text in ended.stderr
    assert "Traceback" not in ended.stderr
    assert path.read_bytes() == b"old"
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_folder_without_source_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    ended = prepare(tmp_path / "corpus.h5", "--source", tmp_path / "empty")
    assert ended.returncode == 1
    assert f"no *.py file under {tmp_path / 'empty'}" in ended.stderr
