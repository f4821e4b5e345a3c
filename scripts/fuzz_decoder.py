"""Gives a worker mutated batches: each must end in an error or a valid execution.

    python scripts/fuzz_decoder.py --batches 100000

Real batches are recorded, then flipped, cut, spliced and given wild lengths, counts, numbers,
tags and sizes. Each runs on a fresh worker in a child process whose address space is limited.
Prints one line, `crashes=0 hangs=0 ...`, and the seed and number of every batch that killed the
child; exits with 1 if there was one. A batch that asks for a valid computation of hours (attention
over a million positions) is given up and counted as long, not as a hang: it uses its processor.
`--only N` runs one batch again, to look at it.
"""

import argparse
import contextlib
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
WILD = (0, 1, 2, 0x7F, 0xFFFF, 0xFFFFFF, 0x1000000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
WILD_INTS = (0, -1, 1, 1 << 62, -(1 << 63), (1 << 63) - 1, 1 << 31, 1 << 40, 1 << 20, -2)
LIMIT_SECONDS = 10
LONG, HUNG = 3, 4  # exit codes of the child
SPARE_BYTES = 3 << 30


def record_programs():
    """Batches of several short programs, each a list of records (lists of words)."""
    import torch
    import torch.nn.functional as F

    import dtorch_mpi as dt
    from dtorch_mpi.kernels import call, memory  # noqa: F401 -- registers a kernel

    dt.init(workers=1)
    mesh = dt.init_device_mesh((1,))
    worker = dt.runtime.current()._workers[0]
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

    programs = []
    definitions = []
    dt.sync()
    worker.keep_batches()
    for program in (views, arithmetic, network, attention, sharded):
        program()  # its operators' definitions come with the first run
        dt.sync()
        seen = len(worker.kept_batches())
        program()
        dt.sync()
        batches = worker.kept_batches()
        definitions += [r for r in records_of(b"".join(batches[:seen])) if kind(r) in DEFINITIONS]
        programs.append(records_of(b"".join(batches[seen:])))
    dt.shutdown()
    # The mesh was defined before anything was kept.
    return [[10, 5, 1, 0, 7 << 24 | 1, 1, 0, 7 << 24 | 1, 0, 0]] + definitions, programs


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
        what = chance.randrange(10)
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


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Watch:
    """Ends the process when a batch takes too long, by an exit code that says what it did."""

    def __init__(self):
        self._began = None
        threading.Thread(target=self._look, daemon=True).start()

    def begin(self):
        self._began = time.monotonic(), time.process_time()

    def end(self):
        self._began = None

    def _look(self):
        while True:
            time.sleep(0.5)
            began = self._began
            if began is None or (took := time.monotonic() - began[0]) < LIMIT_SECONDS:
                continue
            faulthandler.dump_traceback()
            os._exit(LONG if time.process_time() - began[1] > took / 4 else HUNG)


def child(seed, first, count, progress_path):
    import torch

    from dtorch_mpi import _collectives, _transport, _worker

    definitions, programs = record_programs()
    opening = b"".join(struct.pack(f"{len(r)}I", *r) for r in definitions)
    torch.set_num_threads(1)
    groups = _collectives.ThreadGroups()
    maker = groups.maker()
    link = _transport.MemoryLink(0, 1, 0)

    def run(batch):
        worker = _worker.Worker(0, "cpu", "here", link.worker_end(0), maker, num_workers=1)
        assert worker.execute_bytes(opening)
        whole = worker.execute_bytes(batch)
        return whole, worker.num_operators

    for program in programs:  # unharmed, each must run to its end
        whole, executed = run(struct.pack(f"{sum(map(len, program))}I", *sum(program, [])))
        issued = sum(kind(record) == 1 for record in program)
        assert whole and executed >= issued - 2, (whole, executed, issued)
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    if "asan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_AS, (size + SPARE_BYTES,) * 2)
    with open(progress_path, "r+b") as file:
        progress = mmap.mmap(file.fileno(), 32)
    before = resident()
    watch = Watch()
    for number in range(first, first + count):
        struct.pack_into("Q", progress, 0, number)
        batch = mutated(programs, random.Random(f"{seed}.{number}"))
        watch.begin()
        whole, executed = run(batch)
        watch.end()
        lost, ran, grown = struct.unpack_from("3Q", progress, 8)
        grown = max(grown, max(0, resident() - before))
        struct.pack_into("3Q", progress, 8, lost + (not whole), ran + executed, grown)
    struct.pack_into("Q", progress, 0, first + count)
    sys.stdout.flush()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="run this batch alone")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    first, last = 0, options.batches
    if options.only is not None:
        first, last = options.only, options.only + 1
    if options.child is not None:
        child(options.seed, int(options.child[0]), last - int(options.child[0]), options.child[1])
    crashes, hangs, long = [], [], []
    with tempfile.NamedTemporaryFile() as progress:
        progress.write(bytes(32))
        progress.flush()
        while first < last and len(crashes) + len(hangs) < 50:
            with open(progress.name, "r+b") as file:
                file.write(b"\xff" * 8)
            argv = [sys.executable, "-X", "faulthandler", __file__, "--seed", str(options.seed),
                    "--batches", str(last), "--child", str(first), progress.name]  # fmt: skip
            ended = subprocess.run(argv, stderr=subprocess.PIPE, text=True, errors="replace")
            with open(progress.name, "rb") as file:
                reached, lost, ran, grown = struct.unpack("4Q", file.read(32))
            if ended.returncode == 0:
                break
            if reached == (1 << 64) - 1:
                sys.exit(f"the harness itself fails: {ended.returncode}\n{ended.stderr}")
            kinds = {LONG: (long, "long"), HUNG: (hangs, "hangs")}
            found, word = kinds.get(ended.returncode, (crashes, f"exit code {ended.returncode}"))
            found.append(reached)
            print(f"batch {reached} of seed {options.seed}: {word}\n{ended.stderr[-3000:]}")
            first = reached + 1
    print(f"crashes={len(crashes)} hangs={len(hangs)} long={len(long)} batches={last} "
          f"seed={options.seed} broken_off={lost} operators={ran} grown_mib={grown >> 20}")
    sys.exit(1 if crashes or hangs else 0)


if __name__ == "__main__":
    main()
