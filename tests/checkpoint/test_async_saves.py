"""Saves beside the program: what they hold, what they wait for, where their errors come out."""

import asyncio

import pytest
import torch
from launching import run_job

import dtorch_mpi as dt
from dtorch_mpi.checkpoint import CheckpointError

MESH = (2,)
LARGE = (40, 1_000_000)  # 160 MB: longer to write than some operators take


def test_it_holds_what_was_there_at_the_call(tmp_path, mesh):
    tensor = dt.zeros(1000, 300, mesh=mesh, placements=[dt.Shard(0)])
    own, futures = torch.zeros(10), []
    for step in range(4):
        futures.append(dt.checkpoint.save_async(tmp_path, {"x": tensor, "own": own, "step": step}))
        tensor.add_(1)
        own.add_(1)
    for step, future in enumerate(futures):
        state = dt.checkpoint.load(future.get(), device="cpu")
        assert state["step"] == step
        assert state["x"].eq(step).all()
        assert state["own"].eq(step).all()


def test_the_program_goes_on(tmp_path, mesh):
    large = dt.ones(*LARGE, mesh=mesh, placements=[dt.Shard(0)])
    small = torch.ones(8, device="dtorch")
    (small * 1.0).sum().item()  # what is met for the first time takes longer
    future = dt.checkpoint.save_async(tmp_path, {"x": large})
    steps = 0
    while not future.is_ready():
        small = small * 1.0
        steps += small.sum().item() == 8
    assert steps > 20, "the workers did other things meanwhile"
    assert future.get() == dt.checkpoint.latest(tmp_path)
    assert future.wait(0) == future.get()


def test_it_can_be_awaited(tmp_path, mesh):
    async def save():
        return await dt.checkpoint.save_async(tmp_path, {"x": dt.ones(5, mesh=mesh)})

    assert asyncio.run(save()) == dt.checkpoint.latest(tmp_path)


def test_a_second_save_waits_or_is_refused(tmp_path, mesh):
    large = dt.ones(*LARGE, mesh=mesh, placements=[dt.Shard(0)])
    first = dt.checkpoint.save_async(tmp_path, {"x": large, "step": 1})
    with pytest.raises(TimeoutError, match="not whole after 1 ms"):
        first.wait(1)
    with pytest.raises(CheckpointError, match="still being written, and busy='refuse'"):
        dt.checkpoint.save_async(tmp_path, {"step": 2}, busy="refuse")
    second = dt.checkpoint.save_async(tmp_path, {"step": 3})
    assert first.is_ready()
    assert (first.get().name, second.get().name) == ("00000001", "00000002")
    dt.checkpoint.save_async(tmp_path, {"step": 4}, busy="refuse").get()
    dt.checkpoint.save_async(tmp_path, {"x": large})
    assert dt.checkpoint.save(tmp_path, {"step": 5}).name == "00000005"
    assert dt.checkpoint.load(tmp_path) == {"step": 5}


@pytest.mark.filterwarnings("ignore::dtorch_mpi.FallbackWarning")
def test_training_is_the_same_with_saves_beside_it(tmp_path, mesh):
    """Also where steps are replayed, which a question to the workers comes in between."""

    def train(folder):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        dt.distribute_module(model.to("dtorch"), mesh, {"0.weight": [dt.Shard(0)]})
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.linspace(-1, 1, 24, device="dtorch").view(4, 6)
        losses, weights, futures = [], [], []
        for step in range(60):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().to_torch_async())
            if folder is not None and step % 7 == 0:
                weights.append(model[0].weight.detach().clone())
                futures.append(
                    dt.checkpoint.save_async(folder, {"model": model, "optimizer": optimizer})
                )
        return torch.stack([loss.get() for loss in losses]), weights, futures

    expected, *_ = train(None)
    losses, weights, futures = train(tmp_path)
    assert torch.equal(losses, expected)
    assert len(futures) == 9
    for weight, future in zip(weights, futures, strict=True):
        saved = dt.checkpoint.load(future.get(), device="cpu")
        assert torch.equal(saved["model"]["0.weight"], weight.cpu())


def test_keeping_the_newest(tmp_path):
    for step in range(5):
        dt.checkpoint.save(tmp_path, {"step": step}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000004", "00000005"]
    assert dt.checkpoint.latest(tmp_path).name == "00000005"
    assert dt.checkpoint.latest(tmp_path / "nowhere") is None
    dt.checkpoint.save_async(tmp_path, {"step": 5}, keep=1).get()
    assert [path.name for path in tmp_path.iterdir()] == ["00000006"]


ENDING = """
import resource, sys
import torch
import dtorch_mpi as dt
dt.init()
mesh = dt.init_device_mesh((dt.num_workers(),))
x = dt.ones(100, 1000, mesh=mesh, placements=[dt.Shard(0)])
folder, how = sys.argv[1:]
if how in ("no room", "seen", "shutdown"):
    # Files of this process may have no more bytes than that.
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
future = dt.checkpoint.save_async(folder, {"x": x})
x.zero_()
if how == "seen":
    try:
        dt.checkpoint.save(folder, {"step": 1})
    except dt.checkpoint.CheckpointError as error:
        print(error)
if how == "shutdown":
    try:
        dt.shutdown()
    except dt.checkpoint.CheckpointError as error:
        print(error)
if how == "exception":
    raise ValueError("the program has failed")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "ending.py"
    path.write_text(ENDING)
    return path


@pytest.mark.timeout(200)
@pytest.mark.parametrize("launcher", ["thread", "mpirun"])
@pytest.mark.parametrize("how", ["end", "exception"])
def test_the_end_of_the_program_waits(tmp_path, script, launcher, how):
    ended = run_job(script, tmp_path / "saved", how, launcher=launcher, workers=2, limit=180)
    assert (ended.code != 0) == (how == "exception"), ended.err
    assert dt.checkpoint.load(tmp_path / "saved", device="cpu")["x"].eq(1).all()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("how", ["no room", "seen", "shutdown"])
def test_an_error_nobody_asked_for_is_told(tmp_path, script, how):
    ended = run_job(script, tmp_path / "saved", how, workers=2, limit=180)
    text = "could not write"
    if how == "no room":
        assert ended.code == 1
        assert "nobody asked what came of it" in ended.err
        assert text in ended.err
    else:
        assert ended.code == 0, ended.err
        assert text in ended.out
        assert "worker-0000" in ended.out
    assert list((tmp_path / "saved").iterdir()) == []


STUCK = """
import sys
import dtorch_mpi as dt
import worker_kernels
dt.init()
x = worker_kernels.slow(100)
dt.checkpoint.save_async(sys.argv[1], {"x": x})
raise ValueError("the program has failed")
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize("launcher", ["thread", "mpirun"])
def test_a_failed_program_does_not_wait_for_a_stuck_worker(tmp_path, launcher):
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    ended = run_job(script, tmp_path / "saved", launcher=launcher, limit=80)
    assert ended.code != 0
    assert "ValueError: the program has failed" in ended.err
    assert "the program ended before the workers had written all of it" in ended.err


FAILED = """
import sys
import torch
import dtorch_mpi as dt
dt.init()
bad = torch.linalg.cholesky(-torch.eye(3, device="dtorch"))
for save in (dt.checkpoint.save, lambda *a: dt.checkpoint.save_async(*a).get()):
    try:
        save(sys.argv[1], {"good": torch.ones(3, device="dtorch"), "bad": bad})
    except dt.checkpoint.CheckpointError as error:
        print(str(error).replace("\\n", " "))
try:
    bad.cpu()
except dt.WorkerError as error:
    print(error.operator)
"""


@pytest.mark.timeout(200)
def test_a_value_that_failed_is_not_saved(tmp_path):
    script = tmp_path / "failed.py"
    script.write_text(FAILED)
    ended = run_job(script, tmp_path / "saved", workers=2, limit=180)
    at_once, beside, reason = ended.out.splitlines()
    for text in (at_once, beside):
        assert "no value of 'bad' came: an operator that makes it has failed" in text
    assert "linalg" in reason
    assert list((tmp_path / "saved").iterdir()) == []
