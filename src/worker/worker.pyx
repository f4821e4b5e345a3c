# distutils: language = c++
"""A worker: takes batches from its link and executes their records, without the GIL."""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int8_t, int64_t, uint16_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport make_shared, shared_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector

from libtorch cimport THPVariable_Check, THPVariable_Unpack, Tensor
from profiling.timeline cimport Timeline, room_for, steady_ns
from transport.link cimport Batch, WorkerLink

from dtorch_mpi.kernels import failures, registry


cdef extern from "wire/reader.h" namespace "dtorch" nogil:
    cdef enum class Kind:
        kOperator
        kFree
        kDefineOperator
        kDefineSite
        kDefineMesh
        kDefineSharding
        kUpload
        kGet
        kSync
        kRedistribute
        kDescribe
        kPythonKernel
        kShutdown
        kMark
        kDefinePlan
        kReplay
        kMoveSlots
        kForgetPlan
        kRewritePlan
        kTurn
        kWait
        kExport
        kImport

    cppclass Reader:
        Reader(const uint32_t*, const uint32_t*)
        Kind kind()
        uint32_t count()
        uint32_t number()
        uint32_t site()
        uint32_t words()
        void enter()

cdef extern from "wire/activity.h" namespace "dtorch" nogil:
    cppclass Activity:
        void bind()
        void begin(uint32_t kind, uint32_t number, uint32_t site)
        void step()
        void rest()
        void name_kernel(const string&)

cdef extern from "worker/state.h" namespace "dtorch" nogil:
    cppclass MakeGroup:
        pass
    cppclass WorkerGraphs:
        void set_executed(uint32_t graph, uint64_t records)
    cppclass WorkerState:
        int worker
        shared_ptr[WorkerGraphs] graphs
        uint32_t graph
        DeviceStreams streams
        optional[uint32_t] turn
        uint64_t record
        uint32_t site
        uint64_t num_operators
        uint64_t num_failures
        uint64_t num_graphs_captured, num_graphs_replayed
        shared_ptr[GraphMaker] graph_maker
        cbool one_stream
        Activity* activity
        void note_flight()
        cbool stopped
        cbool keeps_batches
        cbool has_others
        string broken
        vector[string] batches
        Timeline timeline
        int64_t busy, idle, batch_began

cdef extern from "worker/call.h" namespace "dtorch" nogil:
    void run_operator(WorkerState&, Reader&, uint32_t, uint32_t)

cdef extern from "worker/definitions.h" namespace "dtorch" nogil:
    void define_operator(WorkerState&, Reader&, uint32_t)
    void define_site(WorkerState&, Reader&, uint32_t)
    void define_mesh(WorkerState&, Reader&, uint32_t)
    void define_sharding(WorkerState&, Reader&, uint32_t)

cdef extern from "worker/slots.h" namespace "dtorch" nogil:
    void free_slot(WorkerState&, uint32_t)

cdef extern from "worker/values.h" namespace "dtorch" nogil:
    void upload(WorkerState&, const WorkerLink&, Reader&, uint32_t)
    void get_value(WorkerState&, const WorkerLink&, Reader&, uint32_t)
    void describe_slot(WorkerState&, const WorkerLink&, Reader&, uint32_t)
    void sync(WorkerState&, const WorkerLink&, Reader&)

cdef extern from "wire/window.h" namespace "dtorch" nogil:
    uint32_t program_records(const uint32_t* record)

cdef extern from "worker/pending.h" namespace "dtorch" nogil:
    void run_redistribute(WorkerState&, Reader&, uint32_t, cbool)
    void settle_all(WorkerState&)

cdef extern from "worker/graph_records.h" namespace "dtorch" nogil:
    void wait_for_graph(WorkerState&, Reader&, uint32_t, uint32_t)
    void export_slot(WorkerState&, Reader&, uint32_t)
    void import_slot(WorkerState&, Reader&, uint32_t, uint32_t)
    void pass_turn(WorkerState&)
    void hear_before_batch(WorkerState&)

cdef extern from "device/streams.h" namespace "dtorch" nogil:
    cppclass DeviceStreams:
        cbool exist()
        void enter() except +

cdef extern from "worker/graph_maker.h" namespace "dtorch":
    cppclass GraphMaker:
        pass
    shared_ptr[GraphMaker] python_graph_maker(object) except +
    size_t c_address_in "dtorch::address_in"(object) except +

cdef extern from "worker/device_progress.h" namespace "dtorch" nogil:
    cppclass DeviceProgress:
        void note(const DeviceStreams&, uint64_t records)
        cbool is_empty()
        cbool advance(uint64_t* records)
    void finish_handover(const WorkerState&)

cdef extern from "worker/plan.h" namespace "dtorch" nogil:
    void define_plan(WorkerState&, Reader&, uint32_t)
    void forget_plan(WorkerState&, uint32_t)
    void rewrite_plan(WorkerState&, Reader&, uint32_t)
    void move_slots(WorkerState&, Reader&)

cdef extern from "worker/python_kernel.h" namespace "dtorch" nogil:
    cppclass KernelOutput:
        uint32_t slot
        int dtype
        uint32_t sharding
        cbool absent
        vector[int64_t] sizes, local_sizes, local_offsets
    cppclass KernelCall:
        string name, packed
        vector[KernelOutput] outputs
        cbool absent
    KernelCall read_kernel_call(WorkerState&, Reader&, uint32_t)
    void store_kernel_outputs(WorkerState&, const KernelCall&, const vector[Tensor]&) except +
    void store_kernel_failure(WorkerState&, const KernelCall&, const string&) except +

cdef extern from *:
    """
    #include <ATen/Parallel.h>
    #include "worker/replay.h"
    #include "capture/resize_warnings.h"
    #include <c10/core/DeviceGuard.h>

    // Runs one record and returns its length. A malformed one becomes a failure; where not even
    // the next one can be found, 0.
    typedef void (*dtorch_record_function)(void* worker, dtorch::Reader& reader);
    static uint32_t dtorch_record(dtorch::WorkerState& state, void* worker, const uint32_t* at,
                                  const uint32_t* end, dtorch_record_function function,
                                  uint16_t flags) {
      uint32_t words = 0;
      ++state.maker;
      dtorch::RecordNote note(state, flags);
      try {
        dtorch::Reader reader = dtorch::Reader::record(at, end);
        words = reader.words();
        function(worker, reader);
      } catch (const std::exception& error) {
        state.stack.clear();
        dtorch::make_failure(state, dtorch::message_of(error));
        if (words == 0) state.broken = dtorch::message_of(error);
        return words;
      }
      note.end(state, at);
      return words;
    }
    static void dtorch_replay(dtorch::WorkerState& state, dtorch::Reader& reader, uint32_t number,
                              void* worker, dtorch_record_function function) {
      dtorch::replay(state, reader, number,
                     [&](const std::vector<uint32_t>& record, uint16_t flags) {
        dtorch_record(state, worker, record.data(), record.data() + record.size(), function, flags);
      });
    }
    static std::string dtorch_operator_name(const dtorch::WorkerState& state, uint32_t number) {
      return number < state.operators.size() ? state.operators[number].name : std::string();
    }
    static void dtorch_keep(dtorch::WorkerState& state, const dtorch::Batch& batch) {
      state.batches.emplace_back(reinterpret_cast<const char*>(batch.begin), batch.bytes());
    }
    // Below autograd, but not InferenceMode: values read in this process stay usable for
    // autograd and in-place operators. What is resized, the client says.
    struct dtorch_below_autograd {
      dtorch_below_autograd() : guard(std::make_unique<at::AutoDispatchBelowADInplaceOrView>()) {}
      std::unique_ptr<at::AutoDispatchBelowADInplaceOrView> guard;
      dtorch::SilentResizing silent;
    };
    static dtorch::WorkerState* dtorch_new_state(int worker, int num_workers,
                                                 const std::string& device,
                                                 const std::string& host, void* make_group,
                                                 std::shared_ptr<dtorch::WorkerGraphs> graphs,
                                                 uint32_t graph) {
      return new dtorch::WorkerState(worker, num_workers, c10::Device(device), host,
                                     *static_cast<dtorch::MakeGroup*>(make_group),
                                     std::move(graphs), graph);
    }
    """
    ctypedef void (*record_function "dtorch_record_function")(
        void* worker, Reader& reader) noexcept nogil
    uint32_t dtorch_record(WorkerState&, void*, const uint32_t*, const uint32_t*,
                           record_function, uint16_t flags) nogil
    void dtorch_replay(WorkerState&, Reader&, uint32_t number, void*, record_function) nogil
    void dtorch_keep(WorkerState&, const Batch&) nogil
    string operator_name "dtorch_operator_name"(const WorkerState&, uint32_t number)
    cppclass below_autograd "dtorch_below_autograd":
        below_autograd()
    WorkerState* dtorch_new_state(int, int, const string&, const string&, void*,
                                  shared_ptr[WorkerGraphs], uint32_t graph) except +
    void set_num_threads "at::set_num_threads"(int)


# Everything a record's execution reaches, in one plain struct.
cdef struct Context:
    WorkerState* state
    WorkerLink* link


cdef void execute(void* self, Reader& reader) noexcept nogil:
    # noexcept to Cython: C++ exceptions pass through to dtorch_record, which catches them.
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
        dtorch_replay(state[0], reader, number, self, execute)
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
        malformed()


cdef extern from *:
    """
    [[noreturn]] static void malformed() { dtorch::Reader::fail("a record of an unknown kind"); }
    """
    void malformed() nogil


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
        words = dtorch_record(context.state[0], context, at, batch.end, execute, 0)
        if words == 0:
            break
        context.state.record += program_records(at)
        at += words
        context.state.graphs.get().set_executed(context.state.graph, context.state.record)
    pass_turn(context.state[0])
    context.state.activity.rest()


cdef extern from "capture/capture.h" namespace "dtorch" nogil:
    void set_executes_records(cbool)


cdef extern from "worker/values.h" namespace "dtorch" nogil:
    void c_live_memory "dtorch::live_memory"(const WorkerState&, int64_t* nbytes, int64_t* tensors)


def live_memory():
    """(bytes, tensors) alive on the worker whose thread calls, and operators it has executed.

    Raises RuntimeError in a thread that runs no worker.
    """
    cdef int64_t nbytes = 0, tensors = 0
    c_live_memory(required_worker()[0], &nbytes, &tensors)
    return nbytes, tensors, this_worker().num_operators


cdef extern from *:
    """
    // The worker that runs in this thread, for Python kernels that ask.
    static thread_local dtorch::WorkerState* dtorch_this_worker = nullptr;
    static dtorch::WorkerState* this_worker() { return dtorch_this_worker; }
    static void set_this_worker(dtorch::WorkerState* state) { dtorch_this_worker = state; }
    """
    WorkerState* this_worker()
    void set_this_worker(WorkerState*)


cdef WorkerState* required_worker() except NULL:
    if this_worker() == NULL:
        raise RuntimeError("this is for Python kernels: this thread runs no worker")
    return this_worker()


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


cdef extern from "worker/fused.h" namespace "dtorch":
    cppclass ScalarType "c10::ScalarType":
        pass
    cppclass Extent "dtorch::FusedKernel::Extent":
        pass
    cppclass DeviceFunction:
        DeviceFunction()
        DeviceFunction(const string& image, const string& name) except +
    cppclass DeviceVariant:
        DeviceVariant(DeviceFunction, uint32_t rows, uint32_t columns, uint32_t threads,
                      uint32_t shared_bytes, uint32_t num_scratch)
    cppclass FusedKernel:
        vector[DeviceVariant] variants
        bint reduces_rows
        vector[ScalarType] inputs, numbers, outputs
        vector[Extent] extents, output_extents
    void c_load_fused_kernel "dtorch::load_fused_kernel"(
        int64_t, const string&, FusedKernel) except +
    void c_load_device_kernel "dtorch::load_device_kernel"(int64_t, int8_t, FusedKernel)


cdef FusedKernel described_kernel(inputs, numbers, outputs) except *:
    cdef FusedKernel kernel
    for dtype, extent in inputs:
        kernel.inputs.push_back(<ScalarType><int>dtype)
        kernel.extents.push_back(<Extent><int>extent)
    for dtype in numbers:
        kernel.numbers.push_back(<ScalarType><int>dtype)
    for dtype, extent in outputs:
        kernel.outputs.push_back(<ScalarType><int>dtype)
        kernel.output_extents.push_back(<Extent><int>extent)
    return kernel


def load_fused_kernel(int64_t number, str path, inputs, numbers, outputs):
    """Make a kernel known to the operator dtorch::fused.

    path: of its library. inputs, outputs: (number of the dtype, number of its extent) of each.
    numbers: numbers of dtypes. Raises RuntimeError for a library that can't be loaded.
    """
    c_load_fused_kernel(number, path.encode(), described_kernel(inputs, numbers, outputs))


def load_device_kernel(int64_t number, int device, variants, bint reduces_rows, inputs, numbers,
                       outputs):
    """The same of a kernel for a GPU, the one that is the calling thread's.

    device: its index. variants: (machine code, name in it, rows, columns, threads, shared_bytes,
    num_scratch) of each, as src/worker/fused.h has them.
    """
    cdef FusedKernel kernel = described_kernel(inputs, numbers, outputs)
    cdef bytes code
    kernel.reduces_rows = reduces_rows
    for code, name, rows, columns, threads, shared_bytes, num_scratch in variants:
        kernel.variants.push_back(DeviceVariant(
            DeviceFunction(code, name.encode()), rows, columns, threads, shared_bytes, num_scratch
        ))
    c_load_device_kernel(number, device, kernel)


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


def address_in(object made):
    """The address of the C++ object in a Python object of a class made with pybind11."""
    return c_address_in(made)


def this_index():
    """The number of the worker that runs in this thread."""
    return required_worker().worker


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
        self.context.state = dtorch_new_state(
            index, num_workers, device.encode(), host.encode(),
            PyCapsule_GetPointer(make_group, "dtorch.MakeGroup"), graphs, graph)
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
        return operator_name(self.context.state[0], number).decode("utf-8", "replace")

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
        cdef below_autograd* guard = new below_autograd()
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
        cdef below_autograd* guard = new below_autograd()
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
                dtorch_keep(self.context.state[0], batch)
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
