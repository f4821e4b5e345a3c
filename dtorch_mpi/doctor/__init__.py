"""`python -m dtorch_mpi doctor`: whether a job can work here, and what to do where it can't.

Each rank checks what it has; rank 0 gathers, compares, prints, and then starts a job.
"""

import faulthandler
import socket
import sys
import time

from dtorch_mpi.doctor import job, own_process
from dtorch_mpi.doctor import ranks as between
from dtorch_mpi.doctor.result import Report, Result, failed, run
from dtorch_mpi.launch import environment

NEEDED = ("versions", "settings", "MPI library")  # or no job can start


def main(folder):
    """Print a row for each check, on rank 0; returns the exit code, 1 where one failed."""
    faulthandler.enable()  # a library that ends the process shall say where
    ranks = between.Ranks(environment.detect(), folder)
    report = {"host": socket.gethostname(), "results": _own(ranks), "facts": {}}
    if "FAIL" not in {report["results"][name].status for name in NEEDED}:
        facts = run(ranks.facts)
        if isinstance(facts, Result):
            report["results"]["facts"] = facts
        else:
            report["facts"] = facts
    goes_on = False
    if ranks.rank > 0:
        if ranks.have_met:
            ranks.send(report)
            goes_on = ranks.decision()
        else:
            ranks.clean_up()
            time.sleep(5)  # mostly rank 0 has not met the others either, and tells
            shown = Report([socket.gethostname()] * ranks.size, file=sys.stderr)
            for name, result in report["results"].items():
                if result.status == "FAIL":
                    shown.add(name, {ranks.rank: result})
        if not goes_on:
            _leave(ranks, int(not ranks.have_met), is_sound=_has_passed(report, "ring"))
        ranks.clean_up()
        import dtorch_mpi

        dtorch_mpi.init()  # a worker stays in it
    reports = ranks.receive(report) if ranks.have_met else {0: report}
    shown = Report([reports[r]["host"] if r in reports else "?" for r in range(ranks.size)])
    for name in report["results"]:
        shown.add(name, {r: its["results"][name] for r, its in reports.items()})
    if ranks.have_met and len(reports) < ranks.size:
        silent = {r: failed("did not report", "look at its output: it may have ended, or hang")
                  for r in range(ranks.size) if r not in reports}
        shown.add("reports", silent)
    elif len(reports) == ranks.size and all(its["facts"] for its in reports.values()):
        facts = {r: its["facts"] for r, its in reports.items()}
        for name, check in (("same versions", between.same_versions),
                            ("threads, cores", between.threads_and_cores),
                            ("devices", between.devices)):
            shown.add(name, run(check, facts))
        if "FAIL" not in {its["results"]["HDF5"].status for its in reports.values()}:
            shown.add("shared folder", run(ranks.shared_folder))
        goes_on = not any(its["results"][name].status == "FAIL" for its in reports.values()
                          for name in (*NEEDED, "launcher", "ring") if name in its["results"])
    ranks.clean_up()
    if ranks.have_met:
        ranks.decide(goes_on)
    if goes_on:
        job.check(shown, None if ranks.launch else 2)
    code = shown.end()
    if ranks.launch and not goes_on:
        _leave(ranks, code, is_sound=len(reports) == ranks.size)
    return code


def _own(ranks):
    """A Result by name: what this rank can find with no other's report."""
    results = {"versions": run(own_process.versions)}
    results["settings"] = run(own_process.settings)
    results["MPI library"] = run(own_process.mpi_library, ranks.launch is not None)
    results["MPI wheels"] = run(own_process.mpi_wheels)
    if ranks.launch and results["MPI library"].status != "FAIL":
        results["launcher"] = run(ranks.meet)
    if ranks.have_met:
        results["ring"] = run(ranks.ring)
    if results["versions"].status != "FAIL":
        results["shared memory"] = run(own_process.shared_memory, not ranks.launch)
        results["compute"] = run(own_process.compute, ranks.index_on_node)
    results["HDF5"] = run(ranks.write_hdf5)
    return results


def _has_passed(report, name):
    return name in report["results"] and report["results"][name].status == "PASS"


def _leave(ranks, code, is_sound):
    """End this rank where no job was tried."""
    ranks.clean_up()
    sys.stdout.flush()
    sys.stderr.flush()
    ranks.leave(code, is_sound)
