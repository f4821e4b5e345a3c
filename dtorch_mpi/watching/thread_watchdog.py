"""The watchdog of worker threads: ends a program whose worker has been at one record for too long.

Ranks under a launcher have a watcher outside of them instead (rank_watchdog.py).
"""

import faulthandler
import os
import signal
import socket
import sys
import threading
import time

from .. import _core
from .flight_record import Activity
from .rank_watchdog import STACKS_SIGNAL, system_view
from .watchdog import Standstill, end_of_text, interval


class ThreadWatchdog:
    """Looks at the workers of this process until it is told to stop.

    workers_of: a function that gives the _worker.Workers, of all graphs. seconds: how long one may
    be at one record. At a prompt the program is told of and goes on.
    """

    def __init__(self, workers_of, num_workers, seconds):
        self._workers_of = workers_of
        self._num_workers = num_workers
        self._seconds = seconds
        self._over = threading.Event()
        threading.Thread(target=self._run, name="dtorch-watchdog", daemon=True).start()

    def stop(self):
        self._over.set()

    def _run(self):
        every = interval(self._seconds)
        stood = Standstill(longest=2 * every)
        while not self._over.wait(every):
            workers = {}
            marks = {}
            for worker in self._workers_of():
                activity = Activity(worker.activity)
                workers[worker.index, activity.graph] = worker
                busy = activity.kind and not activity.wait
                marks[worker.index, activity.graph] = activity.count if busy else None
            for key, seconds in stood.look(time.monotonic(), marks).items():
                if seconds >= self._seconds:
                    self._tell(workers[key], seconds)
                    if not hasattr(sys, "ps1"):
                        sys.stdout.flush()
                        os._exit(1)
                    return

    def _tell(self, worker, seconds):
        activity = Activity(worker.activity, worker.operator_name, _core.site_text)
        print(
            f"[dtorch-mpi] worker {worker.index} of {self._num_workers} on host "
            f"{socket.gethostname()} is stuck: for {seconds:.0f} s in {activity.doing}; "
            f"{end_of_text(self._seconds)}\n"
            f"[dtorch-mpi]   {system_view(os.getpid(), activity.thread)}",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        faulthandler.dump_traceback(sys.stderr)
        thread = next((t for t in threading.enumerate() if t.native_id == activity.thread), None)
        if thread is not None:
            _core.answer_stack_requests(STACKS_SIGNAL, sys.stderr.fileno())
            signal.pthread_kill(thread.ident, STACKS_SIGNAL)
            time.sleep(0.3)  # it has no way to say that it is done
