"""The same tests with more workers, and in processes, each time in a job of its own."""

from pathlib import Path

import pytest
from launching import run_job, run_tests

HERE = Path(__file__).parent
JOBS = [("mpirun", 2), *(pytest.param(*job, marks=pytest.mark.sweep) for job in (
    ("thread", 2), ("thread", 3), ("thread", 4), ("mpirun", 1)))]  # fmt: skip


@pytest.mark.parametrize(("launcher", "workers"), JOBS)
@pytest.mark.timeout(240)
def test_with_other_workers(launcher, workers):
    run_tests(HERE / "test_python_kernels.py", HERE / "test_custom_operators.py",
              launcher=launcher, workers=workers, limit=230)  # fmt: skip


LATE = """
import sys
import torch
import dtorch_mpi as dt

dt.init()

{definition}

x = torch.ones(3, device="dtorch")
made = late(x)
written = x + 1
assert torch.equal((x * 2).cpu(), torch.full((3,), 2.0)) if sys.argv[1] == "known" else True
try:
    made.to_torch()
    dt.sync()
    print("known")
except dt.WorkerError as error:
    print("site", error.site)
    print("operator", error.operator)
    print("reason", error.reason)
for step in range(8):  # in a plan too
    try:
        (late(x * step) + 1).to_torch()
    except dt.WorkerError as error:
        assert "does not know" in error.reason
assert torch.equal((x + 1).cpu(), torch.full((3,), 2.0))
"""
LIMIT = 170  # seconds of a job: on a loaded machine the import of PyTorch alone takes a minute
DEFINITIONS = {
    "python_kernel": """
@dt.python_kernel("late::op(Tensor x) -> Tensor", meta=torch.empty_like)
def late(x):
    return x + 1
""",
    "custom_op": """
@torch.library.custom_op("late::op", mutates_args=())
def late(x: torch.Tensor) -> torch.Tensor:
    return x + 1

late.register_fake(torch.empty_like)
""",
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", DEFINITIONS)
@pytest.mark.parametrize("launcher", ["thread", "mpirun"])
def test_registered_after_init(tmp_path, kind, launcher):
    script = tmp_path / "late.py"
    text = LATE.replace("{definition}", DEFINITIONS[kind])
    script.write_text(text)
    known = launcher == "thread"
    ended = run_job(script, "known" if known else "unknown", launcher=launcher, limit=LIMIT)
    if known:
        assert (ended.code, ended.out) == (0, "known\n"), ended.err
        return
    assert ended.code == 0, ended.err
    line = 1 + text[: text.index("made = late(x)")].count("\n")
    assert f"site {script}:{line} in <module>" in ended.out
    assert "operator late::op(Float[3])" in ended.out
    assert "reason this worker does not know the operator: register it" in ended.out


CHOSEN = """
import torch
import torch.nn.functional as F
import dtorch_mpi as dt

@dt.python_kernel(
    "my::attention(Tensor query, Tensor key, Tensor value) -> Tensor",
    meta=lambda query, key, value: torch.empty_like(query), sharding="bh__, bh__, bh__ -> bh__",
    instead_of=torch.ops.aten.scaled_dot_product_attention,
)
def attention(query, key, value):
    return torch.full_like(query, 7.0)

if {argument!r}:
    dt.init(kernels={argument!r})
x = torch.randn(1, 2, 3, 8, device="dtorch")
print(F.scaled_dot_product_attention(x, x, x).eq(7).all().item())
with dt.use_kernels():
    print(F.scaled_dot_product_attention(x, x, x).eq(7).all().item())
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("launcher", ["thread", "mpirun"])
def test_chosen_for_the_whole_program(tmp_path, launcher):
    script = tmp_path / "chosen.py"
    script.write_text(CHOSEN.replace("{argument!r}", "'my::attention'"))
    ended = run_job(script, launcher=launcher, limit=LIMIT)
    assert (ended.code, ended.out) == (0, "True\nFalse\n"), ended.err


@pytest.mark.timeout(350)
def test_chosen_by_the_environment(tmp_path):
    script = tmp_path / "chosen.py"
    script.write_text(CHOSEN.replace("{argument!r}", "''"))
    ended = run_job(script, settings={"DTORCH_KERNELS": " my::attention"}, limit=LIMIT)
    assert (ended.code, ended.out) == (0, "True\nFalse\n"), ended.err
    ended = run_job(script, settings={"DTORCH_KERNELS": "my::other"}, limit=LIMIT)
    assert ended.code != 0
    assert "'my::other' is no Python kernel registered with instead_of=" in ended.err


