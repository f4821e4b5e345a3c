"""Write the report of scripts/gpu_check.sh, and print its last line.

    python scripts/gpu_report.py ROOM REPORT [--seconds N]

ROOM holds what was run: runs.tsv with a line for each pytest process (the path of its .xml and .log
without the ending or `-`, exit status, seconds, arguments) and figures.json of bench_gpu.py. A test
that ran again counts by its last result. The exit code is 1 where a test failed, a process did not
end as its tests explain or a part of the benchmark raised; a figure that misses its target changes
nothing.
"""

import argparse
import json
import shutil
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from figures import Figure

OUTCOMES = ("passed", "failed", "skipped")
TIME_IS_UP = 124  # exit status of `timeout`, and of what was not begun for want of time


@dataclass
class Run:
    """A pytest process. ended: whether its status is what its tests explain. in_time: False where
    it was stopped between tests, or not begun, for want of time.
    """

    stem: str
    status: int
    seconds: int
    arguments: str
    ended: bool
    in_time: bool


def runs_of(room):
    """The Runs in their order, and the results: {test: (outcome, its last line)}."""
    runs, results = [], {}
    listed = room / "runs.tsv"
    for line in listed.read_text().splitlines() if listed.exists() else []:
        stem, status, seconds, arguments = line.split("\t")
        found = results_of(Path(stem + ".xml"))
        results |= found
        failed = any(outcome == "failed" for outcome, _ in found.values())
        ended = bool(found) and int(status) == int(failed)
        # Stopped by --session-timeout it has status 1, and no test that failed.
        in_time = int(status) != TIME_IS_UP and (ended or not found or int(status) != 1)
        runs.append(Run(stem, int(status), int(seconds), arguments, ended, in_time))
    return runs, results


def results_of(xml):
    """{test: (outcome, last line)} of a junit XML; nothing where there is none."""
    if not xml.exists():
        return {}
    found = {}
    for case in ElementTree.parse(xml).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        outcome, text = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                outcome, text = "failed", last_line(child)
            elif child.tag == "skipped" and outcome == "passed":
                outcome, text = "skipped", child.get("message", "")
        # With an error in its teardown a test is there twice.
        if found.get(name, ("",))[0] != "failed":
            found[name] = outcome, text
    return found


def last_line(element):
    """What went wrong: the last line of the error, behind its first one where that is another."""
    lines = [line for line in (element.text or "").splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    last = (errors or lines or ["no text"])[-1].strip()
    first = (element.get("message") or last).splitlines()[0].strip()
    return last if first == last else f"{first[:300]} ... {last[:300]}"


def folder_of(test):
    # A module that could not be collected has no class name.
    words = test.replace("::", ".").strip(".").split(".")
    return words[words.index("tests") + 1] if "tests" in words[:-1] else "?"


def figures_of(room):
    """(the Figures, {what was left out: why}, names of those that were for an error)."""
    written = room / "figures.json"
    if not written.exists():
        return [], {}, []
    told = json.loads(written.read_text())
    left_out = dict.fromkeys(told["failed"], "did not end") | told["left_out"]
    return [Figure(*values) for values in told["figures"]], left_out, told["failed"]


def output_of(*command):
    """What a command prints, or why it does not."""
    if shutil.which(command[0]) is None:
        return f"no {command[0]} here"
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, errors="replace")
    if done.returncode != 0:
        return f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}"
    return done.stdout.strip()


def commit():
    name = output_of("git", "rev-parse", "HEAD")
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no")
    return name if not changed else f"{name}, with changes"


def cell(text):
    """A text that a cell of a table can hold."""
    return " ".join(text.split()).replace("|", "\\|")


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell(str(value)) for value in line) + " |" for line in lines)


def sections(room, seconds):
    """(the report's text, the last line without the file's name, the exit code)."""
    runs, results = runs_of(room)
    figures, left_out, broken = figures_of(room)
    count = Counter(outcome for outcome, _ in results.values())
    aimed = [figure for figure in figures if figure.target is not None]
    met = [figure for figure in aimed if figure.is_met]
    # One that was run again, and ended, makes good for one that did not.
    repaired = {run.arguments for run in runs if run.ended}
    unended = [run for run in runs if not run.ended and run.arguments not in repaired]

    bad = bool(count["failed"] or unended or broken)
    verdict = "FAILED" if bad else "PASSED"
    if unended and not count["failed"] and not broken and not any(run.in_time for run in unended):
        verdict = "INCOMPLETE"
    line = (f"{verdict} {count['passed']} tests, {count['failed']} failed, "
            f"{count['skipped']} skipped")  # fmt: skip
    if not runs:
        line = "no tests run yet"
    if unended:
        line += f", {len(unended)} of {len(runs)} test processes did not run to their end"
    line += f"; {len(met)} of {len(aimed)} figures within targets"
    if broken:
        line += f", {len(broken)} parts of the benchmark failed"

    text = ["# GPU check", line, table(["", ""], [
        ("date", time.strftime("%Y-%m-%d %H:%M:%S %z")), ("host", socket.gethostname()),
        ("cards, driver, memory", "; ".join(output_of(
            "nvidia-smi", "--query-gpu=name,driver_version,memory.total",
            "--format=csv,noheader").splitlines())),
        ("commit", commit()), ("seconds of tests", sum(run.seconds for run in runs)),
        ("seconds of the command that wrote this", seconds)])]  # fmt: skip
    text += ["## Tests", table(["folder", *OUTCOMES], by_folder(results))]
    if unended:
        text += ["Test processes that did not run to their end (124: time was up; 134, 139: "
                 "crashed; 1: a test hung, or time was up between tests):"]  # fmt: skip
        rows = [(run.arguments, run.status, end_of(Path(run.stem + ".log"))) for run in unended]
        text += [table(["arguments", "exit status", "end of its output"], rows)]
    failures = [(name, why) for name, (outcome, why) in results.items() if outcome == "failed"]
    if failures:
        text += ["## Failures", table(["test", "last line"], failures)]
    reasons = Counter(why for outcome, why in results.values() if outcome == "skipped")
    if reasons:
        rows = [(number, why) for why, number in reasons.most_common()]
        text += ["## Skipped", table(["tests", "reason"], rows)]
    rows = [(figure.name, f"{figure.value:.4g}", figure.unit, figure.goal) for figure in figures]
    text += ["## Figures", table(["figure", "value", "unit", "target"], rows)]
    if left_out:
        text += [table(["left out", "why"], left_out.items())]
    info = output_of(sys.executable, "-m", "dtorch_mpi", "info")
    text += ["## Versions", f"```text\n{info}\n```"]
    return "\n\n".join(text) + "\n", line, int(bad)


def by_folder(results):
    counts = {}
    for test, (outcome, _) in results.items():
        counts.setdefault(folder_of(test), Counter())[outcome] += 1
    counts = dict(sorted(counts.items())) | {"all": sum(counts.values(), Counter())}
    return [(folder, *map(count.get, OUTCOMES, [0] * 3)) for folder, count in counts.items()]


def end_of(log, lines=3):
    if not log.exists():
        return "not begun: time was up"
    return " / ".join(log.read_text(errors="replace").strip().splitlines()[-lines:])[-600:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("room", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--seconds", type=int, default=0, help="that the command took")
    arguments = parser.parse_args()
    text, line, code = sections(arguments.room, arguments.seconds)
    arguments.report.parent.mkdir(parents=True, exist_ok=True)
    arguments.report.write_text(text)
    print(f"gpu_check: {line}; report in {arguments.report}")
    return code


if __name__ == "__main__":
    sys.exit(main())
