"""The compile process: `python <this folder> <niceness>`; see dtorch_mpi/fusion/compile_process.py.

Each line of standard input is {"path": where the kernel belongs, "spec": what it does, "gpu": None
or which GPU it is for}; each line of standard output is [path, what went wrong or ""]. Ends when
the input does, in the middle of a compilation too: whoever asked is gone.
"""

import fcntl
import json
import os
import queue
import signal
import sys
import threading
from functools import partial
from pathlib import Path


def _read(requests):
    for line in sys.stdin:
        requests.put(json.loads(line))
    os.killpg(0, signal.SIGKILL)


def _make(path, spec, gpu):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # One of all processes that ask for the same kernel compiles it.
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            try:
                (_make_here if gpu is None else partial(_make_for, gpu))(path, spec)
            except ValueError as error:
                # It would be so the next time too.
                path.with_suffix(".refused").write_text(f"{error}\n")
                raise


def _make_here(path, spec):
    from library import build
    from source import VECTOR_BITS

    if "extents" in spec:
        from rows import written
        from verification_of_rows import verify
    else:
        from source import written
        from verification import verify
    build(written(spec), path, VECTOR_BITS, partial(verify, spec))


def _make_for(gpu, path, spec):
    from triton_library import build
    from triton_source import written

    build(written(spec), path, gpu)


def main():
    os.nice(int(sys.argv[1]))
    requests = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else must come among the answers
    while True:
        request = requests.get()
        try:
            _make(**request)
            wrong = ""
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        print(json.dumps([request["path"], wrong]), file=answers, flush=True)


main()
