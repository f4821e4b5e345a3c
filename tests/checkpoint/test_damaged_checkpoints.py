"""Files that are missing, short or changed: an error that names the file, and nothing is lost."""

import random
import shutil

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi.checkpoint import CheckpointError

MESH = (3,)


@pytest.fixture
def saved(tmp_path, mesh):
    """The folder of a checkpoint; three workers and the program have written to it."""
    return dt.checkpoint.save(tmp_path, state(mesh, 1.0))


def state(mesh, value):
    return {
        "cut": dt.full((30, 5), value, mesh=mesh, placements=[dt.Shard(0)]),
        "copies": [dt.full((4,), value, mesh=mesh) for _ in range(3)],
        "own": torch.full((5,), value), "step": int(value),
    }  # fmt: skip


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "manifest.json")


def check_refused(folder, name, mesh, text, **given):
    """Loading says which file is wrong, in both ways, and changes nothing."""
    before = state(mesh, 0.0)
    for load in (
        lambda: dt.checkpoint.load(folder, before, **given),
        lambda: dt.checkpoint.load(folder, device="cpu", **given),
    ):
        with pytest.raises(CheckpointError, match=text) as caught:
            load()
        assert str(folder / name) in str(caught.value)
    assert not before["cut"].any().item()
    assert not before["own"].any()
    assert before["step"] == 0


def test_missing(saved, mesh):
    names = files(saved)
    assert len(names) == 5
    for name in names:
        (saved / name).rename(saved / "away")
        check_refused(saved, name, mesh, "is missing")
        check_refused(saved, name, mesh, "is missing", verify=False)
        (saved / "away").rename(saved / name)
    dt.checkpoint.load(saved, state(mesh, 0.0))


def test_short(saved, mesh):
    for name in files(saved):
        path = saved / name
        content = path.read_bytes()
        for cut in (content[:-1], content[: len(content) // 2], b"", content + b"\0"):
            path.write_bytes(cut)
            text = f"has {len(cut)} bytes, and manifest.json says {len(content)}"
            check_refused(saved, name, mesh, text)
            check_refused(saved, name, mesh, text, verify=False)
        path.write_bytes(content)
    dt.checkpoint.load(saved, state(mesh, 0.0))


def test_one_bit_flipped(saved, mesh):
    choose = random.Random(0)
    for name in files(saved):
        path = saved / name
        content = path.read_bytes()
        for _ in range(6):
            place = choose.randrange(len(content) * 8)
            wrong = bytearray(content)
            wrong[place // 8] ^= 1 << place % 8
            path.write_bytes(wrong)
            check_refused(saved, name, mesh, "is damaged: its SHA-256 is")
        path.write_bytes(content)
    dt.checkpoint.load(saved, state(mesh, 0.0))


def test_manifest_flipped(saved, mesh):
    """Whatever a flip makes of the manifest, what is loaded is right or an error names a file."""
    choose = random.Random(1)
    path = saved / "manifest.json"
    content = path.read_bytes()
    refused = 0
    for _ in range(60):
        place = choose.randrange(len(content) * 8)
        wrong = bytearray(content)
        wrong[place // 8] ^= 1 << place % 8
        path.write_bytes(wrong)
        try:
            loaded = dt.checkpoint.load(saved, device="cpu")
        except CheckpointError as error:
            assert str(saved) in str(error)
            refused += 1
        else:
            assert loaded["cut"].eq(1).all()
            assert loaded["step"] == 1
    assert refused > 30


def test_moved_as_a_whole_it_is_whole(saved, mesh, tmp_path):
    moved = shutil.move(saved, tmp_path / "moved")
    loaded = state(mesh, 0.0)
    dt.checkpoint.load(moved, loaded)
    assert loaded["cut"].eq(1).all().item()


def test_a_folder_without_manifest_is_none(saved, mesh):
    (saved / "manifest.json").unlink()
    assert dt.checkpoint.latest(saved.parent) is None
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        dt.checkpoint.load(saved.parent)
    # The next one takes another name.
    assert dt.checkpoint.save(saved.parent, {"x": 1}).name == "00000002"
