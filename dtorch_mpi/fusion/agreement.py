"""Which fused kernels every worker has: a window uses one only then."""

import importlib.util
import time

from ..kernels.timeline import on_all_workers
from ..log import LOGGER
from . import kernels
from .kernels import FAILED, MAKING, READY


def ask_workers(texts, num_workers, on_gpus=False):
    """A future of each worker's states of kernels, [workers, kernels]. on_gpus: of those for the
    GPUs that workers have."""
    from ..tensor import to_torch_async

    states = on_all_workers("fused_kernels", [texts, on_gpus], num_workers, len(texts))
    return to_torch_async(states)


def warn_without_triton():
    """Say once that kernels for GPUs are asked for, and nobody can make them."""
    if importlib.util.find_spec("triton") is None:
        LOGGER.warning(
            "DTORCH_TRITON=1, and there is no Triton here to make kernels for GPUs with: operators "
            "run one by one (pip install triton)"
        )


class AgreedKernels:
    """Rank 0's view: asks its own process first, then the workers of others. Of kernels for GPUs it
    asks the workers alone, who know which they have.

    on_gpus: whether workers compute on GPUs. are_wanted: whether kernels are made for them.

    Used by the planner's thread alone, but for counts().
    """

    def __init__(self, running):
        self._running = running
        self._own = kernels.of_process()
        self.on_gpus = running.device_kind != "cpu"
        self.are_wanted = running.settings.triton or not self.on_gpus
        self._are_all_here = not self.on_gpus and len(running.local_workers) == running.num_workers
        self._states = {}  # packed description -> READY or FAILED, once all workers have said so
        self._asked = set()
        self._wanted = set()
        self._reply = None  # (kernels, future)
        self._next, self._delay = 0.0, 0.0

    def are_there(self, text):
        """Whether all workers have a kernel; has it made otherwise."""
        state = self._states.get(text)
        if state is None:
            self._asked.add(text)
            self._wanted.add(text)
            self.look()
            state = self._states.get(text)
        return state == READY

    def take_asked(self):
        """The kernels that were asked for since and are not there yet."""
        asked, self._asked = self._asked, set()
        return {text for text in asked if text not in self._states}

    def are_settled(self, texts):
        return all(text in self._states for text in texts)

    def counts(self):
        """(kernels that all workers have, kernels given up)."""
        states = list(self._states.values())
        return states.count(READY), states.count(FAILED)

    def look(self):
        """Take in what is known by now. Never waits."""
        if self.on_gpus:
            return self._ask(list(self._wanted))
        here = []
        for text in list(self._wanted):
            state = self._own.state(text)
            if state == FAILED or state == READY and self._are_all_here:
                self._settle(text, state)
            elif state == READY:
                here.append(text)
        if not self._are_all_here:
            self._ask(here)

    def stop(self):
        self._reply = None
        self._own.stop()

    def _settle(self, text, state):
        self._wanted.discard(text)
        self._states[text] = state

    def _ask(self, texts):
        if self._reply is not None:
            asked, future = self._reply
            if not future.is_ready():
                return
            self._reply = None
            value = future.value_in_background()
            # None: a failure of the program's came in its place.
            rows = value.tolist() if value is not None else [[MAKING] * len(asked)]
            for place, text in enumerate(asked):
                states = {row[place] for row in rows}
                if FAILED in states or states == {READY}:
                    self._settle(text, FAILED if FAILED in states else READY)
            self._delay = min(2 * self._delay, 10.0)
            self._next = time.monotonic() + self._delay
        left = [text for text in texts if text in self._wanted]
        if left and time.monotonic() >= self._next:
            self._delay = self._delay or 0.5
            self._reply = left, ask_workers(left, self._running.num_workers, self.on_gpus)
