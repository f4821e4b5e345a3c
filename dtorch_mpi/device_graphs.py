"""CUDA graphs for parts of plans (src/worker/captured.h), as PyTorch makes them.

How a graph is replayed without Python is private to PyTorch: the class at::cuda::CUDAGraph within
torch.cuda.CUDAGraph, and its function replay(). Read in the headers of 2.11 and 2.13; run on
simulated GPUs, whose graphs bring both themselves, and with 2.11 for CUDA on a made-up CUDA.
"""

import ctypes

import torch

_REPLAY = "_ZN2at4cuda9CUDAGraph6replayEv"


class Captures:
    """Captures on the calling thread's current stream. Not for several threads.

    One for each graph of the program on each worker: that has one stream for computation, on which
    all graphs captured here are replayed, one after the other.
    """

    def __init__(self):
        self._pool = None  # of memory, which all its graphs share for that reason
        self._graph = None
        self._failed = []

    def begin(self):
        """Record what the stream is given from now on, rather than run it."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self):
        """(graph, address of the function that replays it, address of what that takes).

        Raises what does not fit into a graph; nothing is left of the capture then.
        """
        graph, self._graph = self._graph, None
        pool = self._pool
        try:
            graph.capture_end()
        except Exception:
            # PyTorch's allocator goes on to serve the stream from the pool, and to hold what it has
            # for the graph, unless told. The one of pinned memory can't be: it asks the graph.
            self._pool = None
            self._failed.append(graph)
            if hasattr(torch._C, "_cuda_endAllocateToPool"):
                device = torch.cuda.current_device()
                torch._C._cuda_endAllocateToPool(device, pool)
                torch._C._cuda_releasePool(device, pool)
            raise
        return graph, *_native(graph)


def _native(graph):
    if hasattr(graph, "native_replay"):  # not PyTorch's own
        return graph.native_replay()
    from ._worker import address_in

    library = ctypes.CDLL("libtorch_cuda.so", mode=ctypes.DEFAULT_MODE | 4)  # RTLD_NOLOAD
    return ctypes.cast(library[_REPLAY], ctypes.c_void_p).value, address_in(graph)


def captures_for(device, wanted):
    """Captures for a worker on this device, or None. wanted: the setting cuda_graphs."""
    return Captures() if wanted and torch.device(device).type == "cuda" else None
