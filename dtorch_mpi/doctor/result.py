"""What a check found, and how a check is run so that it can't hang or end the others."""

import sys
import threading
from collections import Counter
from typing import NamedTuple

from dtorch_mpi.launch.cpus import ranges

LIMIT = 60  # seconds for one check


class Result(NamedTuple):
    """`status` is PASS, WARN or FAIL; `fix` says what to do about the last two."""

    status: str
    reason: str
    fix: str = ""


def passed(reason):
    return Result("PASS", reason)


def warned(reason, fix):
    return Result("WARN", reason, fix)


def failed(reason, fix=""):
    return Result("FAIL", reason, fix)


def failure(error):
    """The Result for an exception; what stands behind `Fix:` in its text is the fix."""
    text = str(error) if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"
    reason, _, fix = text.partition("Fix: ")
    return failed(reason.strip(), fix.strip())


def run(check, *arguments, limit=LIMIT):
    """The Result of check(*arguments), in a thread that is left behind when it takes too long."""
    found = []

    def work():
        try:
            found.append(check(*arguments))
        except BaseException as error:
            found.append(failure(error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit)
    return found[0] if found else failed(f"did not end within {limit} s")


class Report:
    """Prints a row for each check, or for each group of ranks that found the same; counts them."""

    def __init__(self, hosts, file=None):
        self._hosts = hosts  # of each rank
        self._file = file or sys.stdout
        self.count = Counter()

    def add(self, name, results):
        """results: a Result by rank, or one Result of all together."""
        if isinstance(results, Result):
            results = {None: results}
        groups = {}
        for rank, result in results.items():
            groups.setdefault(result, []).append(rank)
        self.count[max(groups, key=lambda r: ["PASS", "WARN", "FAIL"].index(r.status)).status] += 1
        for result, ranks in groups.items():
            of_all = ranks == [None] or len(ranks) == len(self._hosts)
            where = "" if of_all else self._where(ranks)
            self._row(result.status, name, where + result.reason)
            if result.fix:
                self._row("", "  fix", result.fix)

    def end(self):
        """Print the count; returns the exit code."""
        print(f"{self.count['PASS']} passed, {self.count['WARN']} with a warning, "
              f"{self.count['FAIL']} failed", file=self._file, flush=True)
        return int(self.count["FAIL"] > 0)

    def _where(self, ranks):
        hosts = sorted({self._hosts[rank] for rank in ranks})
        shown = ", ".join(hosts[:3]) + (", ..." if len(hosts) > 3 else "")
        return f"rank{'' if len(ranks) == 1 else 's'} {ranges(ranks)} ({shown}): "

    def _row(self, status, name, text):
        first, *rest = text.splitlines() or [""]
        print(f"{status:4}  {name:15}  {first}", file=self._file)
        for line in rest:
            print(f"{'':23}{line}", file=self._file)
        self._file.flush()  # should the next check end the process, this one has been told
