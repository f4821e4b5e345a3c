"""Run a case with threads of this process as its members."""

import threading
import traceback


def run_in_threads(case, backends, abort, seconds=40):
    """Each backend's member runs the case; the first failure is raised, with its rank.

    `abort(text)` frees the members that wait for one that failed.
    """
    size = len(backends)
    failures = []

    def member(rank):
        try:
            case.run(backends[rank], rank, size)
        except BaseException as failure:
            failures.append((rank, failure, traceback.format_exc()))
            abort(f"rank {rank} failed: {failure}")

    threads = [threading.Thread(target=member, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    stuck = [r for r, thread in enumerate(threads) if thread.is_alive()]
    if stuck:
        abort(f"ranks {stuck} have not ended after {seconds} s")
    assert not failures, f"rank {failures[0][0]} of {size}:\n{failures[0][2]}"
    assert not stuck, f"ranks {stuck} of {size} have not ended after {seconds} s"
