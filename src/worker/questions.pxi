# What Python kernels, and what they call, ask of the worker that runs in their thread.

from profiling.timeline cimport room_for
from worker.state cimport Device


cdef extern from "worker/values.h" namespace "dtorch" nogil:
    void c_live_memory "dtorch::live_memory"(const WorkerState&, int64_t* nbytes, int64_t* tensors)

cdef extern from "device/memory.h" namespace "dtorch":
    struct DeviceMemory:
        int64_t allocated, peak_allocated, active, peak_active, reserved, peak_reserved
        int64_t retries, failures
    DeviceMemory memory_of(Device) except +
    void reset_peak_of(Device) except +
    void empty_cache_of(Device) except +


cdef WorkerState* required_worker() except NULL:
    if this_worker() == NULL:
        raise RuntimeError("this is for Python kernels: this thread runs no worker")
    return this_worker()


def live_memory():
    """(bytes, tensors) alive on the worker whose thread calls, and operators it has executed.

    Raises RuntimeError in a thread that runs no worker.
    """
    cdef int64_t nbytes = 0, tensors = 0
    cdef WorkerState* state = required_worker()
    c_live_memory(state[0], &nbytes, &tensors)
    return nbytes, tensors, state.num_operators


def device_memory():
    """What the allocator of this worker's GPU counts, in this process: a dict; None on a CPU."""
    cdef WorkerState* state = required_worker()
    return None if state.device.is_cpu() else memory_of(state.device)


def reset_peak_memory():
    """Have the peaks of device_memory() begin anew; False, and nothing done, on a CPU."""
    cdef WorkerState* state = required_worker()
    if state.device.is_cpu():
        return False
    reset_peak_of(state.device)
    return True


def empty_cache():
    """Have the allocator of this worker's GPU give back what it keeps idle."""
    cdef WorkerState* state = required_worker()
    if not state.device.is_cpu():
        empty_cache_of(state.device)


def begin_timeline(size_t capacity):
    """Note what the worker of this thread executes, the last `capacity` records of it."""
    required_worker().timeline.start(room_for(capacity))


def stop_timeline():
    """(events kept, events lost) by the worker of this thread, which notes no more."""
    cdef WorkerState* state = required_worker()
    state.timeline.stop()
    return state.timeline.size(), state.timeline.lost()


def timeline_events(size_t first, size_t count):
    """Kept events of the worker of this thread as bytes, oldest first."""
    return required_worker().timeline.bytes(first, count)


def clear_timeline():
    required_worker().timeline.clear()


def stage_times():
    """(seconds busy, seconds idle) of the worker of this thread since its start."""
    cdef WorkerState* state = required_worker()
    busy = state.busy
    if state.batch_began:
        busy += steady_ns() - state.batch_began
    return busy * 1e-9, state.idle * 1e-9


def going_on():
    """dtorch_mpi.kernels.going_on()."""
    if this_worker() != NULL:
        this_worker().activity.step()


def this_index():
    """The number of the worker that runs in this thread."""
    return required_worker().worker
