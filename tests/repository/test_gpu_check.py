"""scripts/gpu_check.sh without a GPU, and what it is made of: the report and the benchmark."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launching import ROOT, run_job

HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))
SCRIPTS = ROOT / "scripts"


def gpu_check(folder, *arguments, **settings):
    """Run it in a copy of the project that has what the script starts from, and nothing else."""
    (folder / "scripts").mkdir(exist_ok=True)
    for name in ("gpu_check.sh", "environment.sh"):
        (folder / "scripts" / name).write_text((SCRIPTS / name).read_text())
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}  # fmt: skip
    return subprocess.run(["bash", folder / "scripts" / "gpu_check.sh", *arguments], text=True,
                          capture_output=True, timeout=100, env=environment | settings)  # fmt: skip


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_does_nothing(tmp_path):
    ended = gpu_check(tmp_path)
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    assert line.startswith("gpu_check: no GPU here") and ended.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]


@pytest.mark.parametrize("arguments, settings, told", [
    (["-h"], {}, "got '-h', expected [REPORT] [--only build|tests|bench [ARGUMENTS]]"),
    (["report.md", "--only", "figures"], {}, "got '--only figures', expected"),
    ([], {"GPU_CHECK_MINUTES": "soon"}, "GPU_CHECK_MINUTES is 'soon', expected whole minutes"),
])
def test_what_it_does_not_know_is_refused(tmp_path, arguments, settings, told):
    ended = gpu_check(tmp_path, *arguments, **settings)
    assert ended.returncode == 1 and told in ended.stderr and ended.stdout == ""


def path_with_a_gpu(folder):
    smi = folder / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\necho 'GPU 0: Made-up (UUID: GPU-0)'\n")
    smi.chmod(0o755)
    return f"{smi.parent}:{os.environ['PATH']}"


@pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch is built for CUDA")
def test_a_gpu_and_a_pytorch_for_cpus(tmp_path):
    ended = gpu_check(tmp_path, PATH=path_with_a_gpu(tmp_path), PYTHON=sys.executable)
    assert ended.returncode == 1 and ended.stdout == ""
    assert f"torch {torch.__version__} of {sys.executable}" in ended.stderr
    assert "not built for CUDA" in ended.stderr and "set PYTHON" in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "scripts"]


MADE_UP_TORCH = """
from types import SimpleNamespace
__version__ = "2.11.0+cu130"
version = SimpleNamespace(cuda="13.0")
zeros = lambda *sizes, device: SimpleNamespace(item=lambda: 0.0)
"""


def test_a_pytorch_of_pypi_is_kept(tmp_path):
    """Which CUDA it is for, is in its own version, and not in the one that pip knows."""
    base = tmp_path / "base"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", base], check=True)
    (packages,) = base.glob("lib/python*/site-packages")
    (packages / "torch.py").write_text(MADE_UP_TORCH)
    known = packages / "torch-2.11.0.dist-info"
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\n")
    (tmp_path / "none").mkdir()
    ended = gpu_check(tmp_path, PATH=path_with_a_gpu(tmp_path), PYTHON=str(base / "bin" / "python"),
                      WHEELS=str(tmp_path / "none"))  # fmt: skip
    assert "installing PyTorch ... done" in ended.stdout, ended.stdout + ended.stderr


def test_words_it_does_not_know(tmp_path):
    ended = gpu_check(tmp_path, "report.md", "--only", "test")
    assert ended.returncode == 1
    assert "got '--only test', expected [REPORT] [--only build|tests|bench" in ended.stderr


# ---- the report ----------------------------------------------------------------------------------


def junit(cases):
    """An XML as pytest's: {(class name, name): what stands in the element}."""
    inside = "".join(f'<testcase classname="{place}" name="{name}" time="1">{text}</testcase>'
                     for (place, name), text in cases.items())  # fmt: skip
    return f'<testsuites><testsuite name="pytest">{inside}</testsuite></testsuites>'


FAILED = ('<failure message="AssertionError: 1 | 2&#10;assert 1 == 2">def test():\n&gt; assert 1\n'
          "E   AssertionError: 1 | 2\nE   assert 1 == 2\n\ntests/device/test_a.py:3: AssertionError"
          "</failure>")  # fmt: skip
SKIPPED = '<skipped type="pytest.skip" message="one GPU only">tests/x.py:1: one</skipped>'
CASES = {("tests.device.test_a", "test_one[cuda]"): "", ("tests.device.test_a", "test_two"): FAILED,
         ("tests.checkpoint.test_b.TestC", "test_three"): SKIPPED,
         ("tests.checkpoint.test_b.TestC", "test_four"): ""}  # fmt: skip
FIGURES = {"figures": [["small.add.ratio", 0.9, "x", 1.0], ["gpt.ratio", 0.97, "x", 0.95],
                       ["gpt", 50.0, "ms", None]],
           "left_out": {"gpt.compiled": "torch.compile can't run: no compiler"}, "failed": []}


@pytest.fixture
def room(tmp_path):
    """A function that puts a process's results into a folder, and one that makes the report."""

    def ran(number, cases, status, arguments):
        stem = tmp_path / f"tests-{number:03d}"
        if cases is not None:
            stem.with_suffix(".xml").write_text(junit(cases))
        stem.with_suffix(".log").write_text("first\nFatal Python error: Segmentation fault\n")
        with open(tmp_path / "runs.tsv", "a") as file:
            file.write(f"{stem}\t{status}\t12\t{arguments}\n")

    def report(figures=FIGURES):
        if figures is not None:
            (tmp_path / "figures.json").write_text(json.dumps(figures))
        out = tmp_path / "out" / "report.md"
        ended = run_job(SCRIPTS / "gpu_report.py", tmp_path, out, "--seconds", "99", limit=200)
        assert ended.code in (0, 1) and ended.err == "", ended.err
        assert ended.out.startswith("gpu_check: ") and ended.out.endswith(f"; report in {out}\n")
        line = ended.out.removeprefix("gpu_check: ").removesuffix(f"; report in {out}\n")
        return ended.code, line, out.read_text()

    return ran, report


@pytest.mark.timeout(250)
def test_a_report_of_tests_and_figures(room):
    ran, report = room
    ran(0, CASES, 1, "tests")
    code, line, text = report()
    assert (code, line) == (
        1, "FAILED 2 tests, 1 failed, 1 skipped; 1 of 2 figures within targets")  # fmt: skip
    assert text.startswith(f"# GPU check\n\n{line}\n")
    for row in ("| device | 1 | 1 | 0 |", "| checkpoint | 1 | 0 | 1 |", "| all | 2 | 1 | 1 |",
                "| tests.device.test_a::test_two | AssertionError: 1 \\| 2 ... assert 1 == 2 |",
                "| 1 | one GPU only |",
                "| small.add.ratio | 0.9 | x | <= 1 |", "| gpt.ratio | 0.97 | x | <= 0.95 MISSED |",
                "| gpt | 50 | ms |  |", "| gpt.compiled | torch.compile can't run: no compiler |"):
        assert row in text.splitlines(), row
    _, versions = text.split("## Versions")
    assert torch.__version__ in versions
    # Run again, mended.
    ran(1, {("tests.device.test_a", "test_two"): ""}, 0, "tests/device")
    code, line, text = report()
    assert (code, line) == (
        0, "PASSED 3 tests, 0 failed, 1 skipped; 1 of 2 figures within targets")  # fmt: skip
    assert "## Failures" not in text


@pytest.mark.timeout(250)
def test_a_report_of_what_did_not_end(room):
    ran, report = room
    ran(0, CASES | {("tests.device.test_a", "test_two"): ""}, 0, "tests/checkpoint")
    ran(1, None, 139, "tests/device")
    code, line, text = report(FIGURES | {"failed": ["step"]})
    assert (code, line) == (
        1, "FAILED 3 tests, 0 failed, 1 skipped, 1 of 2 test processes did not run to their end; "
           "1 of 2 figures within targets, 1 parts of the benchmark failed")  # fmt: skip
    assert "| tests/device | 139 | first / Fatal Python error: Segmentation fault |" in text
    assert "| step | did not end |" in text
    ran(2, {("tests.device.test_a", "test_two"): ""}, 0, "tests/device")
    assert report()[0] == 0
    # A session that stopped between tests, for want of time, has an XML.
    ran(3, {("tests.random.test_d", "test_five"): ""}, 1, "tests/random")
    assert report()[:2] == (
        1, "INCOMPLETE 4 tests, 0 failed, 1 skipped, 1 of 4 test processes did not run to "
           "their end; 1 of 2 figures within targets")  # fmt: skip


@pytest.mark.timeout(250)
def test_a_report_of_nothing(room):
    _, report = room
    code, line, _ = report(figures=None)
    assert (code, line) == (0, "no tests run yet; 0 of 0 figures within targets")


# ---- the benchmark -------------------------------------------------------------------------------


@pytest.mark.timeout(400)
def test_the_benchmark_on_a_cpu_worker(tmp_path):
    out = tmp_path / "figures.json"
    ended = run_job(SCRIPTS / "bench_gpu.py", "--device", "cpu", "--quick", "--out", out, limit=350)
    assert ended.code == 0, ended.out + ended.err
    written = json.loads(out.read_text())
    found = {name for name, *_ in written["figures"]}
    expected = {f"{how}.{name}{what}" for how in ("small", "replayed") for name in ("add", "mm")
                for what in ("", ".eager", ".ratio", ".issue.ratio")}  # fmt: skip
    expected |= {"cpu.read.median", "cpu.read.p90", "cpu.read.eager"}
    expected |= {"gpt", "gpt.eager", "gpt.ratio"}
    compiled = {"gpt.compiled", "gpt.over_compiled.ratio"}
    on_gpus = {"device.add", "device.mm", "gpt.memory", "gpt.idle", "replayed_graphs",
               "gpt_graphs"}  # fmt: skip
    left_out = set(written["left_out"])
    assert found - compiled == expected
    assert found & compiled == (set() if "gpt.compiled" in left_out else compiled)
    assert left_out - {"gpt.compiled"} == on_gpus and written["failed"] == []
    assert all(value > 0 for _, value, *_ in written["figures"])
    assert ended.out.endswith(f"{len(found)} figures measured\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_benchmark_without_a_gpu():
    ended = run_job(SCRIPTS / "bench_gpu.py")
    assert ended.code == 0 and ended.out.endswith("finds no GPU here: nothing to measure\n")


def test_the_idle_share_of_a_trace(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_gpu

    spans = [("kernel", 10, 20), ("kernel", 15, 10), ("gpu_memcpy", 50, 5), ("kernel", 70, 40),
             ("gpu_user_annotation", 0, 500), ("cuda_runtime", 0, 400)]  # fmt: skip
    events = [{"ph": "X", "cat": cat, "ts": ts, "dur": dur} for cat, ts, dur in spans]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [*events, {"ph": "M", "name": "process_name"}]}))
    # Work from 10 to 30, 50 to 55 and 70 to 110.
    assert bench_gpu.idle_share(trace) == pytest.approx(1 - 65 / 100)
    trace.write_text('{"traceEvents": []}')
    with pytest.raises(AssertionError, match="no work of a device"):
        bench_gpu.idle_share(trace)
