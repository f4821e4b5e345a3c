"""How a process that uses the device ends: in good order, after a failure, and when forked."""

import atexit
import os
import sys
import traceback

from . import _core, runtime
from .errors import WorkerError

_MOST_TOLD = 10


def install():
    """Look after this process's end; once, when dtorch_mpi is imported."""
    os.register_at_fork(after_in_child=runtime.forget_after_fork)
    # At import: the user's own handlers, registered later, run before this one.
    atexit.register(_at_exit)
    sys.excepthook = _note_failure


def _note_failure(kind, value, trace, previous=sys.excepthook):
    _core.flight_failed(f"{kind.__name__}: {value}")
    started = sys.modules.get("dtorch_mpi.mpi_runtime")
    if started is not None and started.whereabouts is not None and kind is not WorkerError:
        value.add_note(f"[dtorch-mpi] raised on {started.whereabouts()}")
    previous(kind, value, trace)
    _core.flight_told()


def _fatal_exception():
    """The exception that has ended the program, or None."""
    if hasattr(sys, "ps1"):
        return None  # at a prompt the program goes on after one
    # The interpreter sets it before it calls sys.excepthook, which may be another's by now.
    return getattr(sys, "last_value", None)


def _at_exit():
    if runtime.in_forked_child():
        return
    for finish in runtime.before_shutdown:
        error = finish()
        if error is not None:
            print(f"dtorch_mpi: nobody asked what came of it: {error}", file=sys.stderr)
            _core.end_with(1, instead_of=0)
    running = runtime.end()
    if running is None:
        started = sys.modules.get("dtorch_mpi.mpi_runtime")
        if started is not None:
            started.finalize()
        return
    fatal = _fatal_exception()
    if fatal is not None:
        if not running.abandon():
            # The interpreter must not be taken down under a thread that still uses it.
            _leave(130 if isinstance(fatal, KeyboardInterrupt) else 1)
        if isinstance(fatal, KeyboardInterrupt):
            # What the interpreter does of itself, unless some code in text was executed since.
            _core.end_with(130, instead_of=1)
        return
    try:
        failures = running.close()
    except BaseException:
        traceback.print_exc()
        _leave(1)
    if failures:
        for failure in failures[:_MOST_TOLD]:
            print(f"dtorch_mpi: an operator failed and nobody read its result:\n{failure}",
                  file=sys.stderr)
        if len(failures) > _MOST_TOLD:
            print(f"dtorch_mpi: and {len(failures) - _MOST_TOLD} more failures", file=sys.stderr)
        _core.end_with(1, instead_of=0)


def _leave(code):
    sys.stdout.flush()
    sys.stderr.flush()
    started = sys.modules.get("dtorch_mpi.mpi_runtime")
    if started is not None:
        started.abort(code)
    os._exit(code)
