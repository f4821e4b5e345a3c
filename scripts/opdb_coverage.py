"""Run PyTorch's operator database on `dtorch`, and on PyTorch's own DTensor beside it.

    python scripts/opdb_coverage.py [--layouts device,mesh,each,uneven] [--kinds forward,backward]
                                    [--part 1/4] [--only NAME,...] [--dtensor] [--record FILE]

Layouts: `device`, one worker; `mesh`, a 2 x 2 mesh of four workers; `each`, one axis of four, the
placements that PyTorch's DTensorConverter enumerates, at most 24 a sample; `uneven`, one axis of
three. An operator is right where all its cases are.

Kinds: `forward`, `backward` (gradients too), `inplace`, `out` (written to tensors of the right size
and of none), and `errors`: of what PyTorch's database knows to be mistakes, counted one by one,
`right` raises PyTorch's text at the user's line, `wrong` another text, `error` nothing at that line
(what depends on values, such as an index, is told at the next read).

Parts run in processes of their own, so that one that dies or hangs costs one operator, and is
counted as an error.
"""

import argparse
import itertools
import json
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

WORKERS = {"device": 1, "mesh": 4, "each": 4, "uneven": 3}
MESHES = {"device": (1,), "mesh": (2, 2), "each": (4,), "uneven": (3,)}
SECONDS_FOR_ONE = 180
SECONDS_TO_START = 600  # that beside other work too
KEPT = 3  # faults that are shown of one operator


def dtorch_places(layout):
    """(place, read, fallbacks so far, settle) on the dtorch device."""
    from opdb_cases import placing_on, read, settle

    import dtorch_mpi as dt

    dt.init(workers=WORKERS[layout])
    mesh = None if layout == "device" else dt.init_device_mesh(MESHES[layout])

    def fallbacks():
        return sum(times for _, _, times in dt.debug.fallbacks())

    return placing_on(mesh), read, fallbacks, settle


def dtensor_places(layout):
    """The same for PyTorch's DTensor, all ranks simulated in this process."""
    import torch
    import torch.distributed as dist
    from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
    from torch.distributed.tensor import DTensor, distribute_tensor

    size = WORKERS[layout]
    dist.init_process_group("fake", rank=0, world_size=size)
    LocalTensorMode(size).__enter__()
    mesh = dist.init_device_mesh("cpu", MESHES[layout])

    def place(tensor, placements):
        return distribute_tensor(tensor.clone(), mesh, placements[: mesh.ndim])

    def read(value):
        if isinstance(value, DTensor):
            value = value.detach().full_tensor()
        if isinstance(value, LocalTensor):
            value = value.reconcile()
        return value.detach() if isinstance(value, torch.Tensor) else value

    return place, read, lambda: 0, lambda: False


def serve(arguments):
    """Run the operators named on standard input, one line of JSON each."""
    import torch
    from opdb_cases import (
        COMPUTING,
        attempt,
        attempt_error,
        cases,
        layouts_of,
        name_of,
        operators,
        placed,
        run,
    )

    dtype = getattr(torch, arguments.dtype)
    layout, kind = arguments.layouts, arguments.kinds
    found = {name_of(op): op for op in operators(dtype, kind)}
    places = dtensor_places if arguments.dtensor else dtorch_places
    place, read, fallbacks, settle = places(layout)
    print(json.dumps({"ready": sorted(found)}), flush=True)
    for line in sys.stdin:
        op = found[line.strip()]
        begin, before = time.perf_counter(), fallbacks()
        outcomes, faults = Counter(), []
        for sample, expected, draws in cases(op, dtype, kind, arguments.samples):
            values = "close"
            if draws:
                # Of the only run on plain tensors no value is known beforehand.
                values = "any"
                if layout != "device" and not arguments.dtensor:
                    values = "close" if op.name in COMPUTING else "equal"
                    plain = placed(sample, itertools.repeat(None), place, "dtorch")
                    expected = run(op, sample, plain, kind, read, place)
            for row in layouts_of(sample, layout):
                try:
                    given = placed(sample, row, place, None if arguments.dtensor else "dtorch")
                except Exception as error:
                    outcomes["error"] += 1
                    faults.append(f"placing {row}: {error}")
                    continue
                if kind == "errors":
                    outcome = attempt_error(op, expected, given, settle)
                else:
                    outcome = attempt(op, sample, expected, given, kind, read, place, values)
                outcomes[outcome.kind] += 1
                if outcome.kind != "right" and len(faults) < KEPT:
                    faults.append(f"{outcome.kind} {row}: {outcome.detail}")
        print(json.dumps({
            "op": line.strip(), "cases": outcomes, "faults": faults,
            "fallbacks": fallbacks() - before, "seconds": time.perf_counter() - begin,
        }), flush=True)


class Server:
    """A process that runs operators, started again when one kills or hangs it."""

    def __init__(self, command):
        self.command = command
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self.listen, args=(self.process, self.lines), daemon=True).start()
        ready = self.answer(SECONDS_TO_START)
        if ready is None:
            raise RuntimeError(f"{' '.join(self.command)} did not start: run it by hand")
        self.names = ready["ready"]

    @staticmethod
    def listen(process, lines):
        for line in process.stdout:
            if line.startswith("{"):
                lines.put(json.loads(line))
        lines.put(None)

    def answer(self, seconds):
        try:
            return self.lines.get(timeout=seconds)
        except queue.Empty:
            return None

    def run(self, name):
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        answer = self.answer(SECONDS_FOR_ONE)
        if answer is None:
            died = self.process.poll()
            self.process.kill()
            died = self.process.wait() if died is None else died
            what = f"the process died with {died}" if died != -9 else "it hung"
            self.start()
            answer = {"op": name, "cases": {"error": 1}, "faults": [what], "fallbacks": 0,
                      "seconds": float(SECONDS_FOR_ONE)}
        return answer

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def verdict(answer):
    """'right', 'wrong' or 'error' for one operator; None where there was nothing to try."""
    for kind in ("wrong", "error", "late", "right"):
        if answer["cases"].get(kind):
            return kind
    return None


def sweep(arguments, layout, kind, dtensor):
    """[answers] of all operators of the part."""
    command = [
        sys.executable, str(Path(__file__).resolve()), "--serve", "--layouts", layout,
        "--kinds", kind, "--dtype", arguments.dtype, "--samples", str(arguments.samples),
        *(["--dtensor"] if dtensor else []),
    ]
    server = Server(command)
    part, parts = (int(number) for number in arguments.part.split("/"))
    names = server.names[part - 1 :: parts]
    if arguments.only:
        names = [name for name in server.names if name in arguments.only.split(",")]
    answers = []
    for name in names:
        answer = server.run(name)
        answers.append(answer)
        if arguments.verbose and verdict(answer) in ("wrong", "error", "late"):
            print(f"  {name}: {answer['cases']} {answer['faults'][0][:300]}", flush=True)
    server.stop()
    return answers


def summary(answers, kind):
    if kind == "errors":
        cases = sum((Counter(answer["cases"]) for answer in answers), Counter())
        return {"tried": cases.total(), "right": cases["right"], "wrong": cases["wrong"],
                "error": cases["error"] + cases["late"], "fallbacks": 0}
    verdicts = Counter(verdict(answer) for answer in answers)
    return {
        "tried": len(answers) - verdicts[None], "right": verdicts["right"],
        "wrong": verdicts["wrong"], "error": verdicts["error"],
        "fallbacks": sum(1 for answer in answers if answer["fallbacks"]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--layouts", default="device,mesh,each,uneven")
    parser.add_argument("--kinds", default="forward,backward")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--part", default="1/1", help="i/n: every n-th operator from the i-th")
    parser.add_argument("--only", default="", help="names of operators, with commas")
    parser.add_argument("--dtensor", action="store_true", help="PyTorch's DTensor too")
    parser.add_argument("--record", help="a JSON file for every operator's outcome")
    parser.add_argument("--verbose", action="store_true", help="show the first fault of each")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments)
    header = ("who", "layout", "kind", "tried", "right", "wrong", "error", "fallbacks")
    print("{:8}{:8}{:10}{:>7}{:>7}{:>7}{:>7}{:>11}".format(*header), flush=True)
    recorded = {}
    for layout in arguments.layouts.split(","):
        for kind in arguments.kinds.split(","):
            for who in ("dtorch", "DTensor") if arguments.dtensor else ("dtorch",):
                if who == "DTensor" and layout == "device":
                    continue
                answers = sweep(arguments, layout, kind, who == "DTensor")
                counts = summary(answers, kind)
                recorded[f"{who} {layout} {kind}"] = answers
                print("{:8}{:8}{:10}{:7}{:7}{:7}{:7}{:11}".format(
                    who, layout, kind, *counts.values()), flush=True)
                for name, value in counts.items():
                    unit = "mistakes" if kind == "errors" else "operators"
                    print(f"{who}.{layout}.{kind}.{name}={value} {unit}", flush=True)
    if arguments.record:
        Path(arguments.record).write_text(json.dumps(recorded, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
