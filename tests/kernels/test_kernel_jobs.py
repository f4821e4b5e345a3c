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
x = torch.ones(3, device="dtorch")
"""
OF_A_KIND = """
{definition}

made = late(x)  # {kind}
written = x + 1
assert torch.equal((x * 2).cpu(), torch.full((3,), 2.0)) if sys.argv[1] == "known" else True
try:
    made.to_torch()
    dt.sync()
    print("{kind} known")
except dt.WorkerError as error:
    print("{kind} site", error.site)
    print("{kind} operator", error.operator)
    print("{kind} reason", error.reason)
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
@dt.python_kernel("late::python_kernel(Tensor x) -> Tensor", meta=torch.empty_like)
def late(x):
    return x + 1
""",
    "custom_op": """
@torch.library.custom_op("late::custom_op", mutates_args=())
def late(x: torch.Tensor) -> torch.Tensor:
    return x + 1

late.register_fake(torch.empty_like)
""",
}


@pytest.fixture(scope="module", params=["thread", "mpirun"])
def late_job(request, tmp_path_factory):
    """(launcher, script, what it printed) of a job that registers an operator of each kind."""
    script = tmp_path_factory.mktemp("late") / "late.py"
    script.write_text(LATE + "".join(
        OF_A_KIND.replace("{definition}", definition).replace("{kind}", kind)
        for kind, definition in DEFINITIONS.items()))
    known = "known" if request.param == "thread" else "unknown"
    ended = run_job(script, known, launcher=request.param, limit=LIMIT)
    assert ended.code == 0, ended.err
    return request.param, script, ended.out


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", DEFINITIONS)
def test_registered_after_init(late_job, kind):
    launcher, script, out = late_job
    told = [line for line in out.splitlines() if line.startswith(kind)]
    if launcher == "thread":
        assert told == [f"{kind} known"]
        return
    text = script.read_text()
    line = 1 + text[: text.index(f"made = late(x)  # {kind}")].count("\n")
    site, operator, reason = told
    assert site.startswith(f"{kind} site {script}:{line} in <module>")
    assert operator.startswith(f"{kind} operator late::{kind}(Float[3])")
    assert reason.startswith(
        f"{kind} reason this worker does not know the operator: register it")


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


