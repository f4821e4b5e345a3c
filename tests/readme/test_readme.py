"""Every block of code in README does what the text beside it says."""

import doctest
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from blocks import block, blocks
from launching import ROOT

import dtorch_mpi as dt

HOW = {}


def executes(section, language, number=0):
    """The decorated function is given the block's text and a folder that is the current one."""

    def register(function):
        assert (section, language, number) not in HOW
        HOW[section, language, number] = function
        return function

    return register


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", blocks(), ids=str)
def test_block(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    key = block.section, block.language, block.number
    assert key in HOW, "nothing executes this block: say below how it is to be"
    HOW[key](block.text)


def test_nothing_is_executed_that_is_not_there():
    assert HOW.keys() == {(b.section, b.language, b.number) for b in blocks()}


def lines_of(text):
    """(command, its words) of each line, without comments."""
    return [(line, shlex.split(line, comments=True)) for line in text.splitlines() if line.strip()]


def run(line, **settings):
    """A command line in bash; returns what it printed."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    folder = os.path.dirname(sys.executable)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths), "PATH": f"{folder}:{os.environ['PATH']}", **settings
    }  # fmt: skip
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True,
                          timeout=200)  # fmt: skip
    assert done.returncode == 0, f"{line}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def start(workers=2):
    dt.shutdown()
    dt.init(workers=workers)
    return dt.init_device_mesh((workers,))


# ---- the sections, in README's order -------------------------------------------------------------


@executes("dtorch-mpi", "sh")
def _two_commands(text):
    # They install and build. The second one is running now; both are executed in CI.
    commands = [words for _, words in lines_of(text)]
    executed = (ROOT / ".ci/run").read_text()
    assert commands == [["scripts/demo.sh"], ["scripts/test.sh"]]
    assert all(os.access(ROOT / name, os.X_OK) and name in executed for (name,) in commands)


def first_script():
    text = block("A first script", "python").text
    name = re.match(r"# (\w+\.py)\n", text)[1]
    Path(name).write_text(text)
    return name


@executes("A first script", "python")
def _first_script(text):
    assert run(f"python {first_script()}", DTORCH_WORKERS="3").startswith("3 workers: ")


@executes("A first script", "sh")
def _ways_to_start_it(text):
    first_script()
    found = [run(line, **({} if "WORKERS" in line else {"DTORCH_WORKERS": "1"}))
             for line, _ in lines_of(text)]  # fmt: skip
    workers, values = zip(*(re.fullmatch(r"(\d) workers: (.*)\n", out).groups() for out in found),
                          strict=True)  # fmt: skip
    assert workers == ("1", "4", "2", "2", "2")
    assert len(set(values)) == 1


@executes("Moving a PyTorch script over", "diff")
def _moved_script(text):
    before = "".join(line[1:] + "\n" for line in text.splitlines() if line[:1] != "+")
    after = "".join(line[1:] + "\n" for line in text.splitlines() if line[:1] != "-")
    start(3)
    losses = []
    for program in (before, after):
        found = []
        exec(program, {"print": lambda step, loss, to=found: to.append(loss)})
        losses.append(found)
    assert len(losses[0]) == 20
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def placements():
    """The names of the session in README's five minutes, executed up to their last block."""
    dt.shutdown()
    dt.init(workers=4)
    names = {"torch": torch, "dt": dt}
    for number in range(3):
        text = block("Placements in five minutes", "pycon", number).text
        examples = doctest.DocTestParser().get_doctest(text, names, f"block {number}", None, 0)
        failures = []
        doctest.DocTestRunner().run(examples, out=failures.append, clear_globs=False)
        assert not failures, "".join(failures)
        names = examples.globs
    return names


for _number in range(3):
    executes("Placements in five minutes", "pycon", _number)(lambda text: placements())


@executes("Placements in five minutes", "python")
def _module_by_patterns(text):
    mesh = placements()["mesh"]
    layers = [torch.nn.ModuleDict({"up": torch.nn.Linear(4, 8), "down": torch.nn.Linear(8, 4)})
              for _ in range(2)]  # fmt: skip
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(layers),
                                 "embedding": torch.nn.Embedding(6, 4)}).to("dtorch")  # fmt: skip
    exec(text, {"dt": dt, "mesh": mesh, "model": model})
    found = {name: parameter.placements for name, parameter in model.named_parameters()}
    assert found["layers.1.up.weight"] == (dt.Replicate(), dt.Shard(0))
    assert found["layers.0.down.weight"] == (dt.Replicate(), dt.Shard(1))
    assert found["embedding.weight"] == (dt.Shard(0), dt.Replicate())
    assert found["layers.0.up.bias"] == (dt.Replicate(), dt.Replicate())


@executes("Data", "python")
def _data(text):
    with h5py.File("corpus.h5", "w") as file:
        file["train"] = np.arange(200 * 9).reshape(200, 9)
    seen = []

    def train_step(inputs, targets):
        assert inputs.placements == (dt.Shard(0),)
        seen.append(torch.cat([inputs.to_torch(), targets.to_torch()[:, -1:]], 1))
        return inputs.sum()

    exec(text, {"dt": dt, "mesh": start(), "train_step": train_step})
    assert [tuple(batch.shape) for batch in seen] == [(64, 9)] * 3
    rows = torch.cat(seen)[:, 0] // 9
    assert len(set(rows.tolist())) == 192


class BrokenOffError(Exception):
    pass


def training(until):
    """Names for a checkpointed loop that is broken off after `until` steps, and the weights."""
    mesh = dt.init_device_mesh((dt.num_workers(),))
    model = dt.distribute_module(torch.nn.Linear(2, 2).to("dtorch"), mesh, {})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps = []

    def train_step():
        if len(steps) == until:
            raise BrokenOffError
        steps.append(None)
        model(torch.ones(1, 2, device="dtorch")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"dt": dt, "model": model, "optimizer": optimizer, "train_step": train_step}, steps


@executes("Checkpoints", "python")
def _checkpoints(text):
    start()
    names, _ = training(until=250)
    with pytest.raises(BrokenOffError):
        exec(text, names)
    from dtorch_mpi.checkpoint import saving

    assert saving.finish() is None
    assert dt.checkpoint.load("checkpoints", device="cpu")["step"] == 200
    names, steps = training(until=10_000)
    exec(text, names)
    assert len(steps) == 800
    assert saving.finish() is None
    assert sorted(path.name for path in Path("checkpoints").iterdir()) == [
        "00000008", "00000009", "00000010"
    ]  # fmt: skip


@executes("Preemption and time limits", "python")
def _preemption(text):
    start()

    def state(names):
        return {"model": names["model"], "optimizer": names["optimizer"], "step": 0}

    names, _ = training(until=40)
    first = names["state"] = state(names)
    with pytest.raises(BrokenOffError):
        exec(text.replace("every_minutes=30", "every_steps=10"), names)
    names["checkpointer"].save()
    weights = first["model"].weight.to_torch()
    names, steps = training(until=10_000)
    names["state"] = state(names)
    # The constructor alone, then the whole of it.
    exec(text.splitlines()[0], names)
    assert names["state"]["step"] == 40
    assert torch.equal(names["model"].weight.to_torch(), weights)
    exec(text, names)
    assert len(steps) == 960


@executes("Under Slurm", "sh")
def _job_scripts(text):
    # tests/slurm submits them.
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "slurm").glob("test_*.py"))
    for _, (command, script, *_) in lines_of(text):
        assert command == "sbatch" and f'"{Path(script).name}"' in tests
        done = subprocess.run(["bash", ROOT / script], capture_output=True, text=True, timeout=30)
        assert done.returncode == 2 and f"sbatch {script}" in done.stderr


@executes("GPUs", "sh")
def _gpus(text):
    check, simulated = [line for line, _ in lines_of(text)]
    # Where there is a GPU it takes as long as these tests, and is run by hand.
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        assert run(f"cd {ROOT} && {check}").startswith("gpu_check: no GPU here")
    if torch.version.cuda is None:
        assert " passed" in run(f"cd {ROOT} && {simulated}")


@executes("What you have, and whether it works", "sh")
def _info_and_doctor(text):
    info, doctor = [line for line, _ in lines_of(text)]
    assert torch.__version__ in run(info)
    told = run(doctor)
    assert "PASS" in told and "FAIL" not in told


@executes("Regression tests for sites", "sh")
def _reframe(text):
    (_, install), (reframe, _) = lines_of(text)
    extra = re.fullmatch(r"\.\[(\w+)\]", install[2])[1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert install[:2] == ["pip", "install"] and extra in project["optional-dependencies"]
    # tests/reframe runs them.
    listed = run(f"cd {ROOT} && " + reframe.replace(" -r ", f" -l --prefix={Path.cwd()} "))
    assert "Training" in listed


@executes("Where time goes", "python")
def _profile(text):
    start()
    names, _ = training(until=3)
    exec(text, names)
    assert "aten::" in Path("trace.json").read_text()


@executes("Python kernels", "python")
def _python_kernels(text):
    dt.shutdown()
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)

    def model(x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    names = {"dt": dt, "torch": torch, "model": model, "x": q}
    definition, use = text.split("dt.init()")
    exec(definition, names)
    start()
    names |= {name: t.to("dtorch") for name, t in {"q": q, "k": k, "v": v, "x": q}.items()}
    exec("dt.is_initialized()" + use, names)
    torch.testing.assert_close(names["attention"](*map(names.get, "qkv")).cpu(), expected)


@executes("Several graphs", "python")
def _several_graphs(text):
    start()
    printed = []
    names = {"dt": dt, "model": lambda x: x * 2, "other": lambda z: z + 1, "print": printed.append,
             "x": torch.ones(3, device="dtorch"), "z": torch.ones(3, device="dtorch")}  # fmt: skip
    exec(text, names)
    assert printed[0].item() == 12


@executes("Several meshes", "python")
def _several_meshes(text):
    dt.shutdown()
    dt.init(workers=8)
    first, second = torch.nn.Linear(4, 6).to("dtorch"), torch.nn.Linear(6, 1).to("dtorch")
    batches = [torch.ones(2, 4, device="dtorch") * n for n in range(3)]
    names = {"dt": dt, "first": first, "second": second, "batches": batches,
             "loss_of": lambda y: y.sum()}  # fmt: skip
    plain = [torch.nn.Linear(4, 6), torch.nn.Linear(6, 1)]
    for ours, theirs in zip((first, second), plain, strict=True):
        theirs.load_state_dict({n: p.to_torch() for n, p in ours.state_dict().items()})
    exec(text, names)
    sum(plain[1](plain[0](torch.ones(2, 4) * n)).sum() for n in range(3)).backward()
    torch.testing.assert_close(first.weight.grad.to_torch(), plain[0].weight.grad)
    torch.testing.assert_close(second.weight.grad.to_torch(), plain[1].weight.grad)
    dt.shutdown()
