"""ReFrame runs the checks on this machine, small, and its report says what held."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


def reframe(folder, checks, *options, limit):
    """Run checks; returns ReFrame's exit code, {name: its case in the JSON report} and all text."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "TMPDIR": str(folder),
    }  # fmt: skip
    command = [
        Path(sys.executable).with_name("reframe"), "--nocolor", "-C", FOLDER / "settings.py",
        "-r", "-c", checks, "--prefix", folder, "--report-file", folder / "report.json",
        "--report-junit", folder / "junit.xml", *options,
    ]  # fmt: skip
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=limit,
                           env=environment, cwd=folder)  # fmt: skip
    text = ended.stdout + ended.stderr
    assert "WARNING: skipping test file" not in text, text
    assert (folder / "report.json").exists(), text
    [run] = json.loads((folder / "report.json").read_text())["runs"]
    suite = next(ElementTree.parse(folder / "junit.xml").iter("testsuite"))
    assert int(suite.get("tests")) == len(run["testcases"]), text
    return ended.returncode, {case["display_name"]: case for case in run["testcases"]}, text


@pytest.mark.timeout(300)
def test_checks_pass_here(tmp_path):
    wanted = {"TrainingCheck %num_workers=2", "CollectivesCheck %num_workers=3",
              "CheckpointCheck %num_workers=2", "DispatchCheck %num_workers=2"}  # fmt: skip
    names = "|".join(name.replace(" ", "") for name in wanted)
    code, cases, text = reframe(
        tmp_path, FOLDER, "-n", f"^({names})$", "-S", "TrainingCheck.num_steps=10",
        "-S", "rounds=1", "-S", "count=2000", limit=290,
    )  # fmt: skip
    assert code == 0, text
    assert set(cases) == wanted, text
    assert all(case["result"] == "pass" for case in cases.values()), text
    figures = cases["DispatchCheck %num_workers=2"]["perfvalues"]
    assert figures["local:ranks:mpi2.sends_per_batch"][0] == 1
    assert figures["local:ranks:mpi2.rank0_cpu"][0] > 0
    assert cases["TrainingCheck %num_workers=2"]["num_tasks"] == 3


def test_checks_of_a_site_fail_as_they_should(tmp_path):
    code, cases, text = reframe(tmp_path, FOLDER / "programs" / "site_checks.py", limit=110)
    assert code == 1, text
    outcome = {
        name.split()[0]: case["fail_phase"] if case["result"] == "fail" else case["result"]
        for name, case in cases.items()
    }
    assert outcome == {
        "Passes": "pass", "PassesWithinReference": "pass",
        "FailsSanityByExitCode": "sanity", "FailsSanityWithoutMarker": "sanity",
        "FailsSanityWithoutFigure": "sanity", "FailsSanityByReferenceOfNoFigure": "sanity",
        "FailsSanityWithoutLastLine": "sanity", "FailsPerformanceBelowReference": "performance",
    }, text  # fmt: skip
    reason = cases["FailsPerformanceBelowReference %num_workers=2"]["fail_reason"]
    assert "site.rate=50.0 op/s, expected 60" in reason
    assert "no figure site.bandwidth" in (
        cases["FailsSanityWithoutFigure %num_workers=2"]["fail_reason"]
    )
