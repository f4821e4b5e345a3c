"""Gives a worker mutated batches: each must end in an error or a valid execution.

    python scripts/fuzz_decoder.py --batches 100000

The same under AddressSanitizer, in a checkout of its own since the build takes the place of
the usual one (PYTHONPATH: the package of this checkout, should another be installed):

    DTORCH_SANITIZE=address python setup.py build_ext --inplace
    PYTHONPATH=. python scripts/fuzz_decoder.py --batches 100000 --sanitized

Real batches are recorded, then flipped, cut, spliced and given wild lengths, counts, numbers,
kinds, tags and sizes. Each runs on a fresh worker in a child process of limited memory: more
is an error of the operator that asks for it. LibTorch itself is not sanitized, but its
tensors lie in memory that the sanitizer hands out.

Prints one line, `crashes=0 hangs=0 ...`, and the seed and number of every batch that killed the
child; exits with 1 if there was one. clean: batches whose every record ran; failed: with a
record or operator that failed; broken_off: of these, where not even the next record could be
found. A batch that asks for a valid computation of hours (attention over a million positions)
is given up and counted as long, not as a hang: it uses its processor. `--only N` runs one batch
again, to look at it; `--save FILE` keeps it.
"""

import argparse
import contextlib
import ctypes
import faulthandler
import mmap
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import threading
import time

HEADER_WORDS = 4
DEFINITIONS = (3, 5, 6)
SITE = 4
DEFINE_PLAN, REPLAY, MOVE_SLOTS = 15, 16, 17
WILD = (0, 1, 2, 0x7F, 0xFFFF, 0xFFFFFF, 0x1000000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
WILD_INTS = (0, -1, 1, 1 << 62, -(1 << 63), (1 << 63) - 1, 1 << 31, 1 << 40, 1 << 20, -2)
LIMIT_SECONDS = 10
LOOK_SECONDS = 0.5
LONG, HUNG = 3, 4  # exit codes of the child
SPARE_BYTES = 3 << 30
PROGRESS = struct.Struct("7Q")  # batch at hand, clean, failed, broken off, operators, growth, peak
SANITIZER_OPTIONS = {
    "detect_leaks": 0,  # Python's own
    "detect_odr_violation": 0,
    # In place of the limit of the address space; beyond the last one the batch counts as a crash.
    # An operator on a tensor of a wild size makes some copies of it: all must fit in between.
    "allocator_may_return_null": 1,
    "max_allocation_size_mb": 1024,
    "hard_rss_limit_mb": 8192,
    "quarantine_size_mb": 64,
    # Its reports, not Python's.
    "handle_segv": 2,
    "handle_sigbus": 2,
    "handle_sigfpe": 2,
    "handle_abort": 2,
}


def record_programs():
    """Batches of several short programs, each a list of records (lists of words)."""
    import torch
    import torch.nn.functional as F

    import dtorch_mpi as dt
    from dtorch_mpi.kernels import call, memory  # noqa: F401 -- registers a kernel

    dt.init(workers=1, traces=False)
    mesh = dt.init_device_mesh((1,))
    worker = dt.runtime.current().hosted_workers[0]
    d = {"device": "dtorch"}

    def views():
        x = torch.arange(24.0, **d).view(4, 6)
        y = x.t()[1:4].reshape(-1)[::2] + x.as_strided((3, 3), (6, 1), 2).sum()
        x[1:3].mul_(2)
        torch.cat([y, x.flatten()]).to_torch()
        [part.sum() for part in x.split(2)]
        x.expand(2, 4, 6).permute(2, 0, 1).contiguous().to_torch()

    def arithmetic():
        x = torch.tensor([[1.5, 2.0], [3.0, -4.0]], **d)
        y = (x + 1) * 2.5 - x / 3
        torch.where(y > 0, y, x).clamp(-1, 5).to(torch.float64).sum().item()
        torch.randn(3, 4, **d).softmax(-1).argmax(-1).to_torch()
        torch.full((2, 3), 7, dtype=torch.int64, **d).cumsum(1)[torch.tensor([1, 0])].to_torch()

    def network():
        torch.manual_seed(1)
        layer = torch.nn.Sequential(
            torch.nn.Embedding(9, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.GELU(),
            torch.nn.Dropout(0.2), torch.nn.Linear(8, 9),
        ).to("dtorch")  # fmt: skip
        optimizer = torch.optim.AdamW(layer.parameters())
        tokens = torch.tensor([[1, 2, 3], [4, 5, 8]], **d)
        loss = F.cross_entropy(layer(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        loss.item()

    def attention():
        q = torch.randn(1, 2, 4, 8, **d)
        F.scaled_dot_product_attention(q, q, q, is_causal=True).to_torch()
        F.conv2d(torch.randn(1, 2, 5, 5, **d), torch.randn(3, 2, 3, 3, **d)).to_torch()
        F.max_pool2d(torch.randn(1, 2, 4, 4, **d), 2).to_torch()

    def sharded():
        # By way of the device: what a transfer carries is not in the batches.
        x = dt.distribute_tensor(torch.randn(4, 6).to("dtorch"), mesh, [dt.Shard(0)])
        x.redistribute(mesh, [dt.Shard(1)]).redistribute(mesh, [dt.Replicate()]).to_torch()
        dt.sync()
        with contextlib.suppress(dt.WorkerError):
            torch.linalg.cholesky(-torch.eye(2, **d)).to_torch()
        call("dtorch.memory", [], sizes=[1, 3], dtype=torch.int64, mesh=mesh,
             placements=[dt.Shard(0)]).to_torch()  # fmt: skip

    def repeated():
        for step in range(7):
            x = torch.full((3, 4), 0.5 + step, **d)
            parts = torch.relu(x * step).split(2, 1)
            x = torch.cat([torch.dropout(part @ part.t() + 0.25, 0.5, True) for part in parts], 1)
            short_lived = x * 2
            if step == 5:  # leaves the plan
                parts[0].exp_()
            x[1:].mul_(parts[1].sum() + short_lived[1:])
            del short_lived
            x.to_torch()

    programs = []
    definitions = []
    preamble = []  # the first records of each program, to be harmed too
    dt.sync()
    worker.keep_batches()
    for program in (views, arithmetic, network, attention, sharded):
        start = len(worker.kept_batches())
        program()  # its operators' definitions come with the first run
        dt.sync()
        seen = len(worker.kept_batches())
        program()
        dt.sync()
        batches = worker.kept_batches()
        records = records_of(b"".join(batches[start:seen]))
        definitions += [record for record in records if kind(record) in DEFINITIONS]
        preamble += [record for record in records if kind(record) in (*DEFINITIONS, SITE)][:30]
        programs.append(records_of(b"".join(batches[seen:])))
    dt.shutdown()
    # What is told of a plan lies in one program with its replays.
    dt.init(workers=1)
    worker = dt.runtime.current().hosted_workers[0]
    dt.sync()
    worker.keep_batches()
    repeated()
    dt.sync()
    programs.append(records_of(b"".join(worker.kept_batches())))
    assert {DEFINE_PLAN, REPLAY, MOVE_SLOTS} <= {kind(record) for record in programs[-1]}
    dt.shutdown()
    # The mesh was defined before anything was kept.
    mesh = [10, 5, 1, 0, 7 << 24 | 1, 1, 0, 7 << 24 | 1, 0, 0]
    return [mesh, *definitions], [*programs, [mesh, *preamble]]


def kind(record):
    return record[1] & 0xFFFF


def records_of(data):
    words = list(struct.unpack(f"{len(data) // 4}I", data))
    records = []
    at = 0
    while at < len(words):
        records.append(words[at : at + words[at]])
        at += words[at]
    return records


def mutated(programs, chance):
    """A program with a few faults, as bytes."""
    program = [list(record) for record in chance.choice(programs)]
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        record = chance.choice(program)
        at = chance.randrange(len(record)) if record else 0
        what = chance.randrange(11)
        if len(record) < HEADER_WORDS:
            continue
        if what == 0:
            record[at] ^= 1 << chance.randrange(32)
        elif what == 1:
            record[at] = chance.choice(WILD)
        elif what == 2:  # the count
            record[1] = record[1] & 0xFFFF | chance.choice(
                (0, 1, 2, 0x7FFF, 0xFFFF, chance.getrandbits(16))
            ) << 16
        elif what == 3:  # a number: operator, slot, mesh
            record[2] = chance.choice(WILD + tuple(range(40)))
        elif what == 4 and len(record) > HEADER_WORDS:  # a tag
            at = chance.randrange(HEADER_WORDS, len(record))
            record[at] = record[at] & 0xFFFFFF | chance.randrange(26) << 24
        elif what == 5 and len(record) > HEADER_WORDS:  # a payload: a slot, a count
            at = chance.randrange(HEADER_WORDS, len(record))
            payload = chance.choice((0xFFFFFF, chance.randrange(64), chance.getrandbits(24)))
            record[at] = record[at] & 0xFF000000 | payload
        elif what == 6 and len(record) > HEADER_WORDS + 1:  # a 64-bit value
            at = chance.randrange(HEADER_WORDS, len(record) - 1)
            record[at : at + 2] = struct.unpack("2I", struct.pack("q", chance.choice(WILD_INTS)))
        elif what == 7:  # cut or lengthen, with a length that fits or one that does not
            del record[at:]
            if chance.random() < 0.5 and record:
                record[0] = len(record)
        elif what == 8:  # lose, repeat or move a record
            other = chance.randrange(len(program))
            piece = program.pop(other)
            if chance.random() < 0.7:
                program.insert(chance.randrange(len(program) + 1), piece)
                if chance.random() < 0.5:
                    program.insert(chance.randrange(len(program) + 1), list(piece))
            if not program:
                program.append([])
        elif what == 9:  # the kind
            record[1] = record[1] & 0xFFFF0000 | chance.randrange(20)
        else:  # a piece of another program
            source = chance.choice(programs)
            first = chance.randrange(len(source))
            where = chance.randrange(len(program) + 1)
            program[where:where] = [list(r) for r in source[first : first + chance.randrange(1, 9)]]
    words = [word for record in program for word in record]
    data = struct.pack(f"{len(words)}I", *words)
    if chance.random() < 0.05:
        data = data[: chance.randrange(len(data) + 1)]
    return data


def as_bytes(records):
    return b"".join(struct.pack(f"{len(record)}I", *record) for record in records)


def resident():
    # What was freed and not given back to the system is not held.
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Watch:
    """Ends the process when a batch takes too long, by an exit code that says what it did.

    By the processor's time and the main thread's state, not the clock's: the machine may have
    other work to do.
    """

    def __init__(self):
        self._began = None
        threading.Thread(target=self._look, daemon=True).start()

    def begin(self):
        self._began = time.process_time()

    def end(self):
        self._began = None

    def _look(self):
        before, asleep = None, 0
        while True:
            time.sleep(LOOK_SECONDS)
            began = self._began
            with open(f"/proc/self/task/{os.getpid()}/stat") as file:
                waits = file.read().rpartition(")")[2].split()[0] == "S"
            asleep = asleep + 1 if waits and began is not None and began == before else 0
            before = began
            hung = asleep * LOOK_SECONDS > LIMIT_SECONDS
            if hung or (began is not None and time.process_time() - began > LIMIT_SECONDS):
                faulthandler.dump_traceback()
                os._exit(HUNG if hung else LONG)


def child(seed, first, count, progress_path, save):
    import torch

    from dtorch_mpi import _collectives, _sharding, _transport, _worker

    definitions, programs = record_programs()
    opening = as_bytes(definitions)
    torch.set_num_threads(1)
    groups = _collectives.ThreadGroups()
    maker = groups.maker()
    link = _transport.MemoryLink(0, 1, 0)

    def run(batch):
        _sharding.forget_all()  # what an earlier batch has defined
        worker = _worker.Worker(0, "cpu", "here", link.worker_end(0), maker, num_workers=1)
        worker.note_flight()
        assert worker.execute_bytes(opening) and worker.num_failures == 0
        whole = worker.execute_bytes(batch)
        return whole, worker.num_failures, worker.num_operators

    for program in programs:  # unharmed, each must run to its end
        whole, failed, executed = run(as_bytes(program))
        issued = sum(kind(record) == 1 for record in program)
        assert whole and failed <= 2 and executed >= issued - 2, (whole, failed, executed, issued)
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    if "ASAN_OPTIONS" not in os.environ:  # else the sanitizer has its own limit
        resource.setrlimit(resource.RLIMIT_AS, (size + SPARE_BYTES,) * 2)
    with open(progress_path, "r+b") as file:
        progress = mmap.mmap(file.fileno(), PROGRESS.size)
    before, peak_before = resident(), peak()
    watch = Watch()
    for number in range(first, first + count):
        struct.pack_into("Q", progress, 0, number)
        batch = mutated(programs, random.Random(f"{seed}.{number}"))
        if save:
            with open(save, "wb") as file:
                file.write(opening + batch)
        watch.begin()
        whole, failed, executed = run(batch)
        watch.end()
        _, clean, broken, lost, ran, grown, most = PROGRESS.unpack_from(progress)
        PROGRESS.pack_into(
            progress, 0, number, clean + (not failed), broken + (failed > 0), lost + (not whole),
            ran + executed, max(grown, resident() - before), max(most, peak() - peak_before),
        )  # fmt: skip
    struct.pack_into("Q", progress, 0, first + count)
    sys.stdout.flush()
    os._exit(0)


def environment(sanitized):
    """The child's. Raises CalledProcessError where there is no compiler to name its sanitizer."""
    if not sanitized:
        return None
    compiler = os.environ.get("CXX", "g++")
    # Without libstdc++ the sanitizer, which comes first, does not find what throws.
    libraries = [
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True,
                       check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so.6")
    ]  # fmt: skip
    options = ":".join(f"{name}={value}" for name, value in SANITIZER_OPTIONS.items())
    return os.environ | {"LD_PRELOAD": ":".join(libraries), "ASAN_OPTIONS": options}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="begin at this batch of the seed's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sanitized", action="store_true", help="under AddressSanitizer")
    parser.add_argument("--only", type=int, help="run this batch alone")
    parser.add_argument("--save", help="keep each batch in this file, behind its definitions")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    first, last = options.first, options.first + options.batches
    if options.only is not None:
        options.batches, first, last = 1, options.only, options.only + 1
    if options.child is not None:
        first, count, progress_path = options.child
        child(options.seed, int(first), int(count), progress_path, options.save)
    crashes, hangs, long = [], [], []
    with tempfile.NamedTemporaryFile() as progress:
        progress.write(bytes(PROGRESS.size))
        progress.flush()
        while first < last and len(crashes) + len(hangs) < 50:
            with open(progress.name, "r+b") as file:
                file.write(b"\xff" * 8)
            # Python's handler of signals would stand before the sanitizer's.
            handler = [] if options.sanitized else ["-X", "faulthandler"]
            argv = [sys.executable, *handler, __file__, "--seed", str(options.seed),
                    "--child", str(first), str(last - first), progress.name]  # fmt: skip
            argv += ["--save", options.save] if options.save else []
            ended = subprocess.run(argv, stderr=subprocess.PIPE, text=True, errors="replace",
                                   env=environment(options.sanitized))  # fmt: skip
            with open(progress.name, "rb") as file:
                reached, clean, failed, lost, ran, grown, most = PROGRESS.unpack(file.read())
            if ended.returncode == 0:
                break
            if reached == (1 << 64) - 1:
                sys.exit(f"the harness itself fails: {ended.returncode}\n{ended.stderr}")
            kinds = {LONG: (long, "long"), HUNG: (hangs, "hangs")}
            found, word = kinds.get(ended.returncode, (crashes, f"exit code {ended.returncode}"))
            found.append(reached)
            print(f"batch {reached} of seed {options.seed}: {word}\n{ended.stderr[-8000:]}")
            sys.stdout.flush()
            first = reached + 1
    print(f"crashes={len(crashes)} hangs={len(hangs)} long={len(long)} batches={options.batches} "
          f"seed={options.seed} clean={clean} failed={failed} broken_off={lost} operators={ran} "
          f"grown_mib={grown >> 20} peak_mib={most >> 20}")
    sys.exit(1 if crashes or hangs else 0)


if __name__ == "__main__":
    main()
