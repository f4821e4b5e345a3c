"""A mesh of threads in this process, one gloo group for each line of workers along an axis."""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch.distributed as dist


class GlooMesh:
    def __init__(self, shape):
        self.shape = tuple(shape)
        self.coordinates = list(itertools.product(*(range(n) for n in shape)))
        self.pool = ThreadPoolExecutor(math.prod(shape))
        store = dist.HashStore()

        def groups(coordinate):
            made = []
            for axis, length in enumerate(self.shape):
                others = coordinate[:axis] + coordinate[axis + 1 :]
                line = dist.PrefixStore(f"{axis}/{others}", store)
                made.append(
                    dist.ProcessGroupGloo(line, coordinate[axis], length, timedelta(seconds=30))
                )
            return made

        self.groups = self.run(groups, self.coordinates)

    def run(self, task, *arguments):
        """Call ``task`` in a thread a worker, all at once, and give the results in order."""
        futures = [self.pool.submit(task, *each) for each in zip(*arguments, strict=True)]
        return [future.result(timeout=60) for future in futures]

    def close(self):
        self.groups = None
        self.pool.shutdown()
