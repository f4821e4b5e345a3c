"""Kill a program at many moments while it saves checkpoints, and look at what is left each time.

The program trains, in small, and saves all the time, at once and beside the training in turn. It
is killed with SIGKILL, with all its workers, at moments spread over a save and between saves.
After each kill the newest checkpoint must be whole, no older than the last one that was reported
done, and hold one step's values throughout; the next program goes on from it.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

import dtorch_mpi as dt

SIZES = [(700, 1000), (512, 999), (64, 64), (1001,)]


def train(folder, notes):
    """The program that is killed. notes: the file in which it says where it is."""
    dt.init()
    mesh = dt.init_device_mesh((dt.num_workers(),))
    layouts = [[dt.Shard(0)], [dt.Shard(1)], [dt.Replicate()], [dt.Shard(0)]]
    tensors = {
        f"weight.{i}": dt.full(size, 0.0, mesh=mesh, placements=layout)
        for i, (size, layout) in enumerate(zip(SIZES, layouts, strict=True))
    }
    state = {"tensors": tensors, "own": torch.zeros(1000), "step": 0}
    if dt.checkpoint.latest(folder) is not None:
        dt.checkpoint.load(folder, state)
    descriptor = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(text):
        os.write(descriptor, f"{text}\n".encode())

    while True:
        for _ in range(2):
            state["step"] += 1
            state["own"] += 1
            for tensor in tensors.values():
                tensor.add_(1)
        dt.sync()
        saved = state["step"]
        note(f"begin {saved}")
        if saved % 4:
            dt.checkpoint.save(folder, state, keep=2)
        else:
            future = dt.checkpoint.save_async(folder, state, keep=2)
            while not future.is_ready():
                for tensor in tensors.values():
                    tensor.add_(1).sub_(1)
                dt.sync()
            future.get()
        note(f"end {saved}")
        time.sleep(0.01)


class Trainee:
    """A running program. It is forked from this one, or a job under mpirun."""

    def __init__(self, folder, notes, launcher, workers):
        self._notes = notes
        notes.write_text("")
        if launcher == "thread":
            os.environ["DTORCH_WORKERS"] = str(workers)
            self._pid = os.fork()
            if self._pid == 0:
                try:
                    train(folder, notes)
                finally:
                    os._exit(1)
        else:
            self._job = subprocess.Popen(
                ["mpirun", "-n", str(workers + 1), sys.executable, __file__, "--train", folder,
                 "--notes", notes]
            )  # fmt: skip
            self._pid = self._job.pid

    def notes(self):
        """[(word, step)] so far."""
        lines = self._notes.read_text().split("\n")[:-1]
        return [(word, int(step)) for word, step in map(str.split, lines)]

    def wait_for(self, word, count):
        """Wait until it has said a word so often."""
        until = time.monotonic() + 120
        while sum(said == word for said, _ in self.notes()) < count:
            if time.monotonic() > until or os.waitpid(self._pid, os.WNOHANG)[0]:
                sys.exit(f"the program did not come as far as its save number {count}")
            time.sleep(0.0005)

    def kill(self):
        """Kill its processes, all at once, and return what it had said."""
        tree = [self._pid]
        for pid in tree:
            try:
                tree += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            except OSError:
                continue
        for pid in tree:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        os.waitpid(self._pid, 0)
        while any(_lives(pid) for pid in tree):
            time.sleep(0.001)
        return self.notes()


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def phase(folder):
    """What a kill has left aside, in words."""
    for left in folder.glob(".*.*-*"):
        if ".deleting" in left.name:
            return "an old one being deleted"
        names = {path.name for path in left.iterdir()}
        for name in ("manifest.json", "state.json", "index.h5"):
            if name in names:
                return f"{name} begun"
        return f"{len(names)} worker files begun"
    return "nothing aside"


def check(folder, notes):
    """Exit where the newest checkpoint is not what it must be."""
    newest = dt.checkpoint.latest(folder)
    done = [step for word, step in notes if word == "end"]
    if newest is None:
        if done:
            sys.exit(f"step {done[-1]} was saved, and there is no checkpoint")
        return
    state = dt.checkpoint.load(newest, device="cpu")
    step = state["step"]
    begun = [step for _, step in notes]
    if done and step < done[-1] or begun and step > begun[-1]:
        sys.exit(f"{newest} is of step {step}; saves were begun {begun} and done {done}")
    for name, tensor in (*state["tensors"].items(), ("own", state["own"])):
        if not tensor.eq(step).all():
            sys.exit(f"{newest} is of step {step}, and its {name} holds {tensor.unique()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--launcher", choices=["thread", "mpirun"], default="thread")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--notes", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.notes)
    torch.set_num_threads(1)  # the threads of a parallel operator would be missing after a fork
    choose = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder, notes = Path(scratch) / "checkpoints", Path(scratch) / "notes"
        duration = measure(folder, notes, options)
        inside, phases = 0, Counter()
        for number in range(options.kills):
            trainee = Trainee(folder, notes, options.launcher, options.workers)
            count = 1 + choose.randrange(3)
            aimed = number % 6 < 5  # within a save, at a moment of an even spread
            if aimed:
                trainee.wait_for("begin", count)
                time.sleep(duration * choose.random())
            else:
                trainee.wait_for("end", count)
                time.sleep(0.01 * choose.random())
            said = trainee.kill()
            within = said[-1][0] == "begin"
            inside += within
            if aimed:  # how long a save takes depends on what else the machine does
                duration *= 1.02 if within else 0.9
            phases[phase(folder) if within else "between saves"] += 1
            check(folder, said)
    for what, count in phases.most_common():
        print(f"  {count:3} killed with: {what}")
    print(f"{options.kills} kills, {inside} of them inside a save; each time the newest checkpoint "
          "was whole")  # fmt: skip


def measure(folder, notes, options):
    """Seconds that a save takes, the median of some."""
    trainee = Trainee(folder, notes, options.launcher, options.workers)
    times = []
    for count in range(1, 8):
        trainee.wait_for("begin", count)
        began = time.monotonic()
        trainee.wait_for("end", count)
        times.append(time.monotonic() - began)
    check(folder, trainee.kill())
    return statistics.median(times)


if __name__ == "__main__":
    main()
