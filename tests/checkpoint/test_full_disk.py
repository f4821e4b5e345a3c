"""A disk that fills up at any moment of a save: an error, and the checkpoint before is whole."""

import shutil
import subprocess

import pytest
import torch

import dtorch_mpi as dt
from dtorch_mpi.checkpoint import CheckpointError

MESH = (2,)
CAPACITY = 4 << 20


@pytest.fixture
def disk(tmp_path):
    """The folder of a file system of 4 MiB."""
    if shutil.which("mount") is None:
        pytest.skip("no mount command")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={CAPACITY}", "tmpfs", folder],
        capture_output=True, text=True,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip(f"mounting a small disk is not permitted: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def state(mesh, step, rows):
    return {
        "cut": dt.full((rows, 64), float(step), mesh=mesh, placements=[dt.Shard(0)]),
        "own": torch.full((16, 256), float(step)), "step": step,
    }  # fmt: skip


def check_whole(folder, step):
    loaded = dt.checkpoint.load(folder, device="cpu")
    assert loaded["step"] == step
    assert loaded["cut"].eq(step).all()
    assert loaded["own"].eq(step).all()


@pytest.mark.parametrize("beside", [False, True], ids=["at once", "beside"])
def test_a_tensor_that_has_no_room(disk, mesh, beside):
    def save(*given):
        return dt.checkpoint.save_async(*given).get() if beside else dt.checkpoint.save(*given)

    folder = disk / "checkpoints"
    save(folder, state(mesh, 1, 100))
    for _ in range(3):
        with pytest.raises(CheckpointError, match=r"worker-0000\d\.h5: .*No space left on device"):
            save(folder, state(mesh, 2, 20_000))
        assert [path.name for path in folder.iterdir()] == ["00000001"]
        check_whole(folder, 1)
    save(folder, state(mesh, 3, 100))
    check_whole(folder, 3)


def test_every_file_of_a_save_meets_the_end_of_the_disk(disk, mesh):
    folder = disk / "checkpoints"
    last = 1
    dt.checkpoint.save(folder, state(mesh, last, 100), keep=1)
    failed_in = set()
    filler = disk / "filler"
    for room in range(0, 110_000, 4096):
        free = shutil.disk_usage(disk).free
        filler.write_bytes(bytes(max(0, free - room)))
        try:
            dt.checkpoint.save(folder, state(mesh, last + 1, 100), keep=1)
            last += 1
        except CheckpointError as error:
            assert "No space left on device" in str(error), error
            failed_in |= {name for name in ("worker-", "index", "state", "manifest", "writing")
                          if name in str(error)}  # fmt: skip
        assert len(list(folder.iterdir())) == 1
        check_whole(folder, last)
        filler.unlink()
    assert last > 1
    assert {"worker-", "writing"} <= failed_in
