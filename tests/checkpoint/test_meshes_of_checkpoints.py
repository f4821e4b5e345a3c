"""What was saved on one mesh, loaded on others; and what each worker writes of it."""

import re
import shutil
import subprocess

import h5py
import numpy as np
import pytest
import saved_layouts
import torch

import dtorch_mpi as dt

MESHES = [(4,), (2, 2), (3,), (1,), (2,)]


def mesh_of(shape):
    dt.shutdown()
    dt.init(workers=torch.Size(shape).numel())
    return dt.init_device_mesh(shape)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """{shape: folder of three checkpoints, of different placements}."""
    folders = {}
    for shape in MESHES:
        mesh = mesh_of(shape)
        folders[shape] = tmp_path_factory.mktemp("saved")
        for turn in range(3):
            dt.checkpoint.save(folders[shape], {"x": saved_layouts.placed(mesh, turn)})
    yield folders
    dt.shutdown()


@pytest.mark.parametrize("to", MESHES, ids=str)
def test_any_mesh_to_any_other(saved, to):
    mesh = mesh_of(to)
    for folder in saved.values():
        for turn in range(3):
            one = folder / f"{turn + 1:08d}"
            state = {"x": saved_layouts.blank(mesh, turn + 1)}
            dt.checkpoint.load(one, state)
            saved_layouts.check(state["x"])
            saved_layouts.check(dt.checkpoint.load(one, mesh=mesh)["x"])


def test_plain_h5py_reads_all_of_it(saved):
    for folder in saved.values():
        for turn in range(3):
            with h5py.File(folder / f"{turn + 1:08d}" / "index.h5") as index:
                for name in saved_layouts.SIZES:
                    expected = saved_layouts.whole(name).contiguous()
                    bits = expected.view(-1).view(torch.uint8).numpy()
                    stored = index[f"x/{name}"]
                    assert stored.shape == tuple(expected.shape)
                    assert stored[()].tobytes() == bits.tobytes()
                    assert stored.attrs["dtype"] == str(expected.dtype).removeprefix("torch.")
                assert np.array_equal(index["x/meshless"][()], np.arange(5.0))
                assert isinstance(index["x/cube"][0, 0, 0], np.complex64)


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="no h5dump: package hdf5-tools")
def test_h5dump_reads_all_of_it(saved):
    for folder in saved.values():
        for turn in range(3):
            index = folder / f"{turn + 1:08d}" / "index.h5"
            told = subprocess.run(
                ["h5dump", "-d", "/x/few", "-y", "-w", "0", index], capture_output=True, text=True,
                check=True,
            ).stdout  # fmt: skip
            told = told.split("DATA {")[1].split("}")[0]
            numbers = [int(text) for text in re.findall(r"-?\d+", told)]
            assert numbers == saved_layouts.whole("few").flatten().tolist()
            told = subprocess.run(
                ["h5dump", "-H", index], capture_output=True, text=True, check=True
            ).stdout
            assert 'ATTRIBUTE "dtype"' in told
            for name in saved_layouts.SIZES:
                assert f'"{name}"' in told


def test_copies_are_written_once(saved):
    for shape, folder in saved.items():
        for turn in range(3):
            one = folder / f"{turn + 1:08d}"
            counts = dict.fromkeys(saved_layouts.SIZES, 0)
            for path in one.glob("worker-*.h5"):
                with h5py.File(path) as file:
                    for name in file["x"]:
                        if name in counts:
                            counts[name] += file[f"x/{name}"].size
            sizes = saved_layouts.SIZES
            expected = {name: torch.Size(sizes[name]).numel() for name in sizes}
            assert counts == expected, (shape, turn)


def test_workers_share_what_all_of_them_have(tmp_path):
    mesh = mesh_of((4,))
    tensors = {str(i): dt.distribute_tensor(torch.ones(1000), mesh) for i in range(12)}
    one = dt.checkpoint.save(tmp_path, tensors)
    written = []
    for path in sorted(one.glob("worker-*.h5")):
        with h5py.File(path) as file:
            written.append(len(file))
    assert written == [3, 3, 3, 3]
    dt.shutdown()


def test_tensors_of_a_part_of_the_workers(tmp_path):
    mesh = dt.init(workers=4) or dt.init_device_mesh((2, 2), mesh_dim_names=("pp", "dp"))
    stages = [mesh["pp", 0], mesh["pp", 1]]
    values = [torch.arange(6.0).view(3, 2), torch.arange(10.0).view(5, 2)]
    state = {
        "stages": [dt.distribute_tensor(value, stage, [dt.Shard(0)])
                   for value, stage in zip(values, stages, strict=True)],
        "last": dt.distribute_tensor(torch.tensor(3.0), stages[1]),
    }  # fmt: skip
    dt.checkpoint.save(tmp_path, state)
    swapped = {
        "stages": [dt.distribute_tensor(torch.zeros_like(value), stage, [dt.Shard(1)])
                   for value, stage in zip(values, reversed(stages), strict=True)],
        "last": dt.distribute_tensor(torch.tensor(0.0), stages[0]),
    }  # fmt: skip
    dt.checkpoint.load(tmp_path, swapped)
    for value, loaded in zip(values, swapped["stages"], strict=True):
        assert torch.equal(loaded.cpu(), value)
    assert swapped["last"].item() == 3
    dt.shutdown()
