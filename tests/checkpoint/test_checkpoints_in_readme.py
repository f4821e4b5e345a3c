"""The example of README's section on checkpoints does what it says."""

import textwrap
from pathlib import Path

import torch

import dtorch_mpi as dt

MESH = (2,)
README = Path(__file__).parents[2] / "README.md"


def example():
    section = README.read_text().split("## Checkpoints\n")[1]
    lines = section.splitlines()[1:]
    end = next(i for i, line in enumerate(lines) if line and not line.startswith("    "))
    return textwrap.dedent("\n".join(lines[:end]))


def test_it_saves_and_goes_on(tmp_path, monkeypatch, mesh):
    monkeypatch.chdir(tmp_path)
    steps = []

    def run(until):
        model = dt.distribute_module(torch.nn.Linear(2, 2).to("dtorch"), mesh, {})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def train_step():
            if len(steps) == until:
                raise KeyboardInterrupt
            steps.append(model.weight.to_torch())
            model(torch.ones(1, 2, device="dtorch")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        names = {"dt": dt, "model": model, "optimizer": optimizer, "train_step": train_step}
        try:
            exec(example(), names)
        except KeyboardInterrupt:
            return
        assert until > 1000

    run(until=250)
    assert len(steps) == 250
    from dtorch_mpi.checkpoint import saving

    assert saving.finish() is None
    assert dt.checkpoint.load("checkpoints", device="cpu")["step"] == 200
    del steps[:]
    run(until=10_000)
    assert len(steps) == 800
    assert saving.finish() is None
    assert sorted(path.name for path in Path("checkpoints").iterdir()) == [
        "00000008", "00000009", "00000010"
    ]  # fmt: skip
