"""Run random tensor programs on `dtorch` and on plain PyTorch, and shrink what differs.

    python scripts/fuzz.py --minutes 10 [--seed 0] [--workers 4] [--times 5] [--graphs 3]

Prints each fault once as the shortest program found, and ends with 1 if there was one.
"""

import argparse
import random
import sys
import time

import hypothesis
from fuzz_programs import differences, programs, text
from hypothesis import HealthCheck, Phase, settings

MESHES = {1: [(1,)], 2: [(2,)], 3: [(3,)], 4: [(4,), (2, 2)]}


def hunt(mesh, seed, examples, times=1, graphs=()):
    """The shortest program whose values differ and what differs, or None.

    times: how often each is run; from the third time on it is replayed. graphs: that its lines go
    to, beside the main one.
    """
    found = {}

    @hypothesis.seed(seed)
    @settings(
        max_examples=examples, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
    )
    @hypothesis.given(programs(len(mesh.shape)))
    def check(lines):
        wrong = differences(lines, mesh, times, graphs)
        if wrong:
            found["program"], found["wrong"] = lines, wrong
            raise AssertionError(wrong.partition("\n")[0])

    try:
        check()
    except AssertionError:
        return found["program"], found["wrong"]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="0: 1 to 4 in turn")
    parser.add_argument("--examples", type=int, default=200, help="programs between two seeds")
    parser.add_argument("--times", type=int, default=1,
                        help="run each so often: from the third time on it is replayed")
    parser.add_argument("--graphs", type=int, default=0, help="spread each over so many graphs")
    arguments = parser.parse_args()
    import dtorch_mpi as dt

    end = time.monotonic() + arguments.minutes * 60
    seeds = random.Random(arguments.seed)
    rounds = faults = 0
    while time.monotonic() < end:
        workers = arguments.workers or 1 + rounds % 4
        dt.init(workers=workers)
        graphs = [dt.Graph() for _ in range(arguments.graphs)]
        for shape in MESHES[workers]:
            mesh = dt.init_device_mesh(shape)
            result = hunt(mesh, seeds.randrange(1 << 30), arguments.examples, arguments.times,
                          graphs)
            if result is not None:
                faults += 1
                print(f"\n{text(result[0], mesh)}\n  {result[1]}", flush=True)
        try:
            dt.shutdown()
        except Exception as error:
            print(f"at the end of the round: {error}", flush=True)
        rounds += 1
    print(f"{rounds} rounds of {arguments.examples} programs, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
