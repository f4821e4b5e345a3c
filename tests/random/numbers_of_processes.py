"""Worker ranks draw what a worker thread drew; run by test_same_numbers.py under mpirun."""

import functools
import os

import torch
from programs import CALLS, FACTORIES, laid, probabilities, read, seeded
from test_same_numbers import assert_same

import dtorch_mpi as dt

dt.init()


def test_the_numbers_of_threads():
    wanted = torch.load(os.environ["DTORCH_NUMBERS"])
    mesh = dt.init_device_mesh((dt.num_workers(),))
    for name, call in FACTORIES.items():
        assert_same(read(seeded(call)), wanted[name], name)
    for name, call in CALLS.items():
        x = laid(probabilities(), mesh, [dt.Shard(0)])
        assert_same(read(seeded(functools.partial(call, x))), wanted[name], name)
