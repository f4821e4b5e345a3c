"""Rank 0's side of one graph: its queue of records, the controller's thread and the planner."""

import threading
from contextlib import contextmanager

from . import _controller, _core


@contextmanager
def issuing_to(number):
    """A context in which this thread's operators go to the graph of that number."""
    before = _core.current_graph()
    _core.set_current_graph(number)
    try:
        yield
    finally:
        _core.set_current_graph(before)


class Engine:
    """Takes what the program issues to one graph and has the workers run it.

    number: of the graph; 0 is the main one. links: to the workers, for this graph. order: shared by
    all graphs of a job. device_kind: what the workers compute on.
    """

    def __init__(self, number, links, order, settings, device_kind):
        self.number = number
        self.links = links
        self.settings = settings
        self.planner = None
        _core.open_queue(number, settings.max_records, settings.max_bytes)
        self.controller = _controller.Controller(
            order, number, [link.controller_end() for link in links],
            window_bytes=settings.window_bytes, gather_microseconds=settings.gather_us,
            traces=settings.traces, for_graphs=settings.cuda_graphs and device_kind == "cuda",
        )  # fmt: skip
        self._thread = threading.Thread(
            target=self.controller.run, name=f"dtorch-controller-{number}", daemon=True
        )

    def start(self, kernels):
        """kernels: the AgreedKernels that the planner asks for."""
        from .passes.planner import Planner

        self._thread.start()
        if self.settings.traces:
            self.planner = Planner(
                self.controller, self.settings.passes, self.settings.streams, kernels
            )

    def flush(self):
        """Have everything issued sent, at once: somebody waits for a value."""
        self.controller.flush()

    def shut(self):
        """Issue the workers' end; nothing is taken from now on."""
        with issuing_to(self.number):
            _core.emit_shutdown()
        self.controller.stop()
        _core.flush(self.number)
        _core.close_queue(self.number)

    def join(self, timeout=None):
        """Wait until all is sent and executed."""
        self._thread.join(timeout)

    def abandon(self):
        """What was not sent is lost."""
        self.controller.abandon()
