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
    if not any(_has_failed(report, name) for name in NEEDED):
        facts = run(ranks.facts)
        if isinstance(facts, Result):
            report["results"]["facts"] = facts
        else:
            report["facts"] = facts
    if ranks.rank > 0:
        _follow(ranks, report)
    reports = ranks.receive(report) if ranks.have_met else {0: report}
    shown = Report([reports[r]["host"] if r in reports else "?" for r in range(ranks.size)])
    _show(ranks, reports, shown)
    goes_on = len(reports) == ranks.size and not any(
        _has_failed(its, name) for its in reports.values()
        for name in (*NEEDED, "launcher", "ring"))
    ranks.clean_up()
    if ranks.have_met:
        ranks.decide(goes_on)
    if goes_on:
        job.check(shown, None if ranks.launch else 2)
    code = shown.end()
    if ranks.launch and not goes_on:
        _leave(ranks, code, is_sound=len(reports) == ranks.size)
    return code


def _follow(ranks, report):
    """On the other ranks: give rank 0 the report, and do as it says. Does not return."""
    if ranks.have_met:
        ranks.send(report)
        if ranks.decision():
            ranks.clean_up()
            import dtorch_mpi

            dtorch_mpi.init()  # a worker stays in it
        _leave(ranks, 0, is_sound=not _has_failed(report, "ring"))
    ranks.clean_up()
    time.sleep(5)  # mostly rank 0 has not met the others either, and tells
    shown = Report([socket.gethostname()] * ranks.size, file=sys.stderr)
    for name, result in report["results"].items():
        if _has_failed(report, name):
            shown.add(name, {ranks.rank: result})
    _leave(ranks, 1, is_sound=False)


def _show(ranks, reports, shown):
    """Rows for what each rank found, and for what they are together."""
    for name in dict.fromkeys(name for its in reports.values() for name in its["results"]):
        shown.add(name, {rank: its["results"][name] for rank, its in reports.items()
                         if name in its["results"]})
    if len(reports) < ranks.size:
        if ranks.have_met:
            shown.add("reports", {
                rank: failed("did not report", "look at its output: it may have ended, or hang")
                for rank in range(ranks.size) if rank not in reports})
        return
    facts = {rank: its["facts"] for rank, its in reports.items() if its["facts"]}
    if len(facts) == ranks.size:
        shown.add("same versions", run(between.same_versions, facts))
        shown.add("threads, cores", run(between.threads_and_cores, facts))
        shown.add("devices", run(between.devices, facts))
    if not any(_has_failed(its, "HDF5") for its in reports.values()):
        shown.add("shared folder", run(ranks.shared_folder))


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


def _has_failed(report, name):
    return name in report["results"] and report["results"][name].status == "FAIL"


def _leave(ranks, code, is_sound):
    """End this rank where no job was tried."""
    ranks.clean_up()
    sys.stdout.flush()
    sys.stderr.flush()
    ranks.leave(code, is_sound)
