# distutils: language = c++
"""A worker: takes batches from its link and executes their records, without the GIL."""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport make_shared, shared_ptr
from libcpp.vector cimport vector

from libtorch cimport THPVariable_Check, THPVariable_Unpack, Tensor
from profiling.timeline cimport steady_ns
from transport.link cimport Batch, WorkerLink
from worker.records cimport (
    KernelCall, Kind, Reader, define_mesh, define_operator, define_plan, define_sharding,
    define_site, describe_slot, export_slot, finish_handover, forget_plan, free_slot, get_value,
    hear_before_batch, import_slot, move_slots, pass_turn, program_records, read_kernel_call,
    refuse_record, rewrite_plan, run_operator, run_plan, run_record, run_redistribute, settle_all,
    store_kernel_failure, store_kernel_outputs, sync, upload, wait_for_graph,
)
from worker.state cimport (
    Activity, BelowAutograd, DeviceStreams, GraphMaker, MakeGroup, WorkerGraphs, WorkerState,
    set_this_worker, this_worker,
)

from dtorch_mpi.kernels import failures, registry


cdef extern from "capture/capture.h" namespace "dtorch" nogil:
    void set_executes_records(cbool)

cdef extern from "ATen/Parallel.h" namespace "at":
    void set_num_threads(int)

cdef extern from "worker/device_progress.h" namespace "dtorch" nogil:
    cppclass DeviceProgress:
        void note(const DeviceStreams&, uint64_t records)
        cbool is_empty()
        cbool advance(uint64_t* records)

cdef extern from "worker/graph_maker.h" namespace "dtorch":
    shared_ptr[GraphMaker] python_graph_maker(object) except +
    size_t c_address_in "dtorch::address_in"(object) except +


# Everything a record's execution reaches, in one plain struct.
cdef struct Context:
    WorkerState* state
    WorkerLink* link


cdef void execute(void* self, Reader& reader) noexcept nogil:
    # noexcept to Cython: C++ exceptions pass through to run_record, which catches them.
    cdef Context* context = <Context*>self
    cdef WorkerState* state = context.state
    cdef Kind kind = reader.kind()
    cdef uint32_t count = reader.count()
    cdef uint32_t number = reader.number()
    state.site = reader.site()
    state.activity.begin(<uint32_t>kind, number, state.site)
    reader.enter()
    if kind == Kind.kOperator:
        run_operator(state[0], reader, count, number)
    elif kind == Kind.kFree:
        free_slot(state[0], number)
    elif kind == Kind.kRedistribute:
        run_redistribute(state[0], reader, number, count != 0)
    elif kind == Kind.kGet:
        get_value(state[0], context.link[0], reader, number)
    elif kind == Kind.kUpload:
        upload(state[0], context.link[0], reader, number)
    elif kind == Kind.kPythonKernel:
        run_python_kernel(state, reader, count)
    elif kind == Kind.kDefineOperator:
        define_operator(state[0], reader, number)
    elif kind == Kind.kDefineSite:
        define_site(state[0], reader, number)
    elif kind == Kind.kDefineMesh:
        define_mesh(state[0], reader, number)
    elif kind == Kind.kDefineSharding:
        define_sharding(state[0], reader, number)
    elif kind == Kind.kSync:
        sync(state[0], context.link[0], reader)
    elif kind == Kind.kDescribe:
        describe_slot(state[0], context.link[0], reader, number)
    elif kind == Kind.kReplay:
        run_plan(state[0], reader, number, self, execute)
    elif kind == Kind.kDefinePlan:
        define_plan(state[0], reader, number)
    elif kind == Kind.kMoveSlots:
        move_slots(state[0], reader)
    elif kind == Kind.kRewritePlan:
        rewrite_plan(state[0], reader, number)
    elif kind == Kind.kForgetPlan:
        forget_plan(state[0], number)
    elif kind == Kind.kShutdown:
        settle_all(state[0])
        finish_handover(state[0])
        state.stopped = True
    elif kind == Kind.kWait:
        wait_for_graph(state[0], reader, count, number)
    elif kind == Kind.kExport:
        export_slot(state[0], reader, number)
    elif kind == Kind.kImport:
        import_slot(state[0], reader, count, number)
    elif kind == Kind.kTurn:
        state.turn = number
    elif kind == Kind.kMark:
        pass
    else:
        refuse_record()


cdef void run_python_kernel(WorkerState* state, Reader& reader, uint32_t count) noexcept nogil:
    cdef KernelCall call = read_kernel_call(state[0], reader, count)
    if not call.absent:
        state.activity.name_kernel(call.name)
        with gil:
            python_kernel(state, call)


cdef void python_kernel(WorkerState* state, const KernelCall& call) noexcept:
    cdef vector[Tensor] results
    name = call.name.decode("utf-8", "replace")
    try:
        outputs = [
            (call.outputs[i].dtype, tuple(call.outputs[i].sizes),
             tuple(call.outputs[i].local_sizes), tuple(call.outputs[i].local_offsets))
            for i in range(<int>call.outputs.size())
        ]
        for tensor in registry.run(name, call.packed, outputs):
            if not THPVariable_Check(tensor) or tensor.device.type not in ("cpu", "cuda"):
                raise TypeError(f"expected tensors in the worker's own memory, got {tensor!r:.100}")
            results.push_back(THPVariable_Unpack(tensor))
        store_kernel_outputs(state[0], call, results)
    except BaseException as error:
        text = f"kernel {name}: {failures.describe(type(error), error, error.__traceback__)}"
        store_kernel_failure(state[0], call, text.encode("utf-8", "replace"))


cdef void execute_batch(Context* context, Batch* batch) noexcept nogil:
    cdef const uint32_t* at = batch.begin
    cdef uint32_t words
    context.state.record = batch.first_record
    hear_before_batch(context.state[0])
    while at < batch.end and not context.state.stopped:
        words = run_record(context.state[0], context, at, batch.end, execute, 0)
        if words == 0:
            break
        context.state.record += program_records(at)
        at += words
        context.state.graphs.get().set_executed(context.state.graph, context.state.record)
    pass_turn(context.state[0])
    context.state.activity.rest()


include "worker/fused.pxi"
include "worker/questions.pxi"


def address_in(object made):
    """The address of the C++ object in a Python object of a class made with pybind11."""
    return c_address_in(made)


cdef class Worker:
    """One worker's state and loop, of one graph.

    index: its number among the workers. device: where its tensors live. link: capsule of its
    end of the transport. make_group: capsule of the function that makes communication groups.
    num_workers: of the job, where it is known; a mesh that names another is refused. one_stream:
    nothing goes on beside the record at hand. graph: number of the graph. beside: the same
    worker's for the main graph. captures: makes graphs of the device (device_graphs.Captures).
    """

    cdef Context context
    cdef object keep
    cdef readonly int index
    cdef readonly bint running  # whether run() is at work

    def __init__(self, int index, str device, str host, link, make_group, *,
                 int num_workers=1 << 24, bint one_stream=False, uint32_t graph=0,
                 Worker beside=None, captures=None):
        cdef shared_ptr[WorkerGraphs] graphs
        if beside is None:
            graphs = make_shared[WorkerGraphs]()
        else:
            graphs = beside.context.state.graphs
        self.keep = (link, make_group)
        self.index = index
        self.context.link = <WorkerLink*>PyCapsule_GetPointer(link, "dtorch.WorkerLink")
        cdef MakeGroup* groups = <MakeGroup*>PyCapsule_GetPointer(make_group, "dtorch.MakeGroup")
        self.context.state = new WorkerState(
            index, num_workers, device.encode(), host.encode(), groups[0], graphs, graph)
        self.context.state.one_stream = one_stream
        if captures is not None:
            self.context.state.graph_maker = python_graph_maker(captures)

    def __dealloc__(self):
        del self.context.state

    @property
    def num_operators(self):
        """Operators executed so far."""
        return self.context.state.num_operators

    @property
    def num_failures(self):
        """Records that failed so far, those that only name a failed value not counted."""
        return self.context.state.num_failures

    @property
    def num_graphs_captured(self):
        """How often a part of a plan has become a graph of the device (DTORCH_CUDA_GRAPHS)."""
        return self.context.state.num_graphs_captured

    @property
    def num_graphs_replayed(self):
        """How often a part of a plan ran as a graph of the device (DTORCH_CUDA_GRAPHS)."""
        return self.context.state.num_graphs_replayed

    def note_flight(self):
        """Have this worker write its process's flight record."""
        self.context.state.note_flight()

    @property
    def activity(self):
        """What it is at, as bytes that dtorch_mpi.watching.flight_record.Activity takes."""
        return (<const char*>self.context.state.activity)[:sizeof(Activity)]

    def operator_name(self, uint32_t number):
        """The name of an operator, by the number that an activity gives."""
        return self.context.state.operator_name(number).decode("utf-8", "replace")

    @property
    def broken(self):
        """Why this worker can't go on; empty while it can."""
        return self.context.state.broken.decode("utf-8", "replace")

    def stop(self):
        """Have run() return after the operator at hand; what was issued after it is lost."""
        self.context.state.stopped = True

    def keep_batches(self):
        """Keep the batches that come from now on; for tests of the decoder."""
        self.context.state.keeps_batches = True

    def kept_batches(self):
        """The batches kept so far, as bytes. Call it after a sync."""
        return list(self.context.state.batches)

    def run(self, int num_threads):
        """Execute until a shutdown record comes. num_threads: for each operator.

        Raises RuntimeError when the stream can't be followed any further.
        """
        self.running = True
        set_executes_records(True)
        set_num_threads(num_threads)
        set_this_worker(self.context.state)
        self.context.state.activity.bind()
        self.context.state.streams.enter()
        cdef BelowAutograd* guard = new BelowAutograd()
        with nogil:
            self.loop()
        del guard
        set_executes_records(False)
        self.running = False
        if self.broken:
            raise RuntimeError(f"a worker lost the stream of records: {self.broken}")

    def execute_bytes(self, bytes batch):
        """Execute a batch given as bytes; for tests of the decoder.

        Returns whether every record's beginning was found.
        """
        cdef Batch parsed
        cdef vector[uint32_t] words
        words.resize(len(batch) // 4)
        cdef const char* source = batch
        cdef char* target = <char*>words.data()
        for i in range(words.size() * 4):
            target[i] = source[i]
        parsed.begin = words.data()
        parsed.end = words.data() + words.size()
        cdef WorkerState* before = this_worker()
        set_this_worker(self.context.state)
        cdef BelowAutograd* guard = new BelowAutograd()
        self.context.state.has_others = False
        with nogil:
            execute_batch(&self.context, &parsed)
        del guard
        set_this_worker(before)
        self.context.state.stopped = False
        self.context.state.has_others = True
        cdef cbool whole = self.context.state.broken.empty()
        self.context.state.broken.clear()
        return whole

    cdef void loop(self) noexcept nogil:
        cdef Batch batch
        cdef WorkerState* state = self.context.state
        cdef int64_t now, before = steady_ns()
        cdef DeviceProgress device
        cdef uint64_t executed = 0
        while not self.context.state.stopped and self.context.state.broken.empty():
            if device.advance(&executed):
                self.context.link.progress(self.context.link.self, executed)
            if not self.context.link.receive(self.context.link.self, &batch,
                                             2000 if device.is_empty() else 100):
                continue
            if self.context.state.keeps_batches:
                state.keep(batch)
            now = steady_ns()
            state.idle += now - before
            state.batch_began = now
            execute_batch(&self.context, &batch)
            before = steady_ns()
            state.busy += before - now
            state.batch_began = 0
            executed = batch.first_record + batch.records
            if state.streams.exist():
                device.note(state.streams, executed)
            else:
                self.context.link.progress(self.context.link.self, executed)
            batch = Batch()
        if self.context.state.stopped:
            # Nothing that is still issued will run: nobody need wait for it.
            self.context.link.progress(self.context.link.self, <uint64_t>-1)
