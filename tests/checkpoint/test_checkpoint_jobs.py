"""Checkpoints of jobs whose workers are processes."""

from pathlib import Path

import h5py
import pytest
import torch
from launching import run_job

import dtorch_mpi as dt

JOB = Path(__file__).with_name("checkpoint_job.py")
LIMIT = 170


def run(what, folder, shape, **options):
    ended = run_job(JOB, what, folder, shape, limit=LIMIT, **options)
    assert (ended.code, ended.out) == (0, "done\n"), f"{ended.out}\n{ended.err}"


@pytest.mark.timeout(3 * LIMIT)
def test_four_processes_to_three_and_to_threads(tmp_path):
    run("save", tmp_path, "2x2", launcher="mpirun", workers=4)
    run("load", tmp_path, "3", launcher="mpirun", workers=3)
    run("load", tmp_path, "2x1", launcher="thread", workers=2)


@pytest.mark.timeout(2 * LIMIT)
def test_one_file_where_h5py_has_mpi(tmp_path):
    run("single", tmp_path, "3", launcher="mpirun", workers=3)
    expected = ["workers.h5"] if h5py.get_config().mpi else [
        f"worker-{worker:05d}.h5" for worker in range(3)
    ]  # fmt: skip
    for one in tmp_path.iterdir():
        assert sorted(path.name for path in one.glob("worker*")) == expected
    run("load", tmp_path, "1x2", launcher="thread", workers=2)


@pytest.mark.timeout(LIMIT)
def test_one_file_of_threads_is_the_default_layout(tmp_path):
    run("single", tmp_path, "2", launcher="thread", workers=2)
    for one in tmp_path.iterdir():
        assert len(list(one.glob("worker-*.h5"))) == 2


@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("dim", [0, 1])
def test_each_worker_reads_its_own_part_only(tmp_path, dim):
    dt.shutdown()
    dt.init(workers=4)
    mesh = dt.init_device_mesh((4,))
    value = torch.arange(3000.0).expand(1200, 3000)
    dt.checkpoint.save(tmp_path, {"x": dt.distribute_tensor(value, mesh, [dt.Shard(0)])})
    dt.shutdown()
    ended = run_job(Path(__file__).with_name("own_parts_only.py"), tmp_path, dim,
                    launcher="mpirun", workers=3, limit=LIMIT)  # fmt: skip
    assert ended.code == 0, ended.err
    read, part = map(int, ended.out.split())
    # Beside it what HDF5 needs to find the part.
    assert part <= read < 1.1 * part + 200_000
