# distutils: language = c++
"""A worker: takes batches from its link and executes their records, without the GIL."""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector

from libtorch cimport THPVariable_Unpack, THPVariable_Wrap, Tensor
from transport.link cimport Batch, WorkerLink

from dtorch_mpi.kernels import registry


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

    cppclass Reader:
        Reader(const uint32_t*, const uint32_t*)
        Kind kind()
        uint32_t count()
        uint32_t number()
        uint32_t site()
        uint32_t words()
        void enter()

cdef extern from "worker/state.h" namespace "dtorch" nogil:
    cppclass MakeGroup:
        pass
    cppclass WorkerState:
        uint64_t record
        uint32_t site
        uint64_t num_operators
        cbool notes_flight
        cbool stopped

cdef extern from "worker/call.h" namespace "dtorch" nogil:
    void run_operator(WorkerState&, Reader&, uint32_t, uint32_t)
    void define_operator(WorkerState&, Reader&, uint32_t)
    void define_site(WorkerState&, Reader&, uint32_t)
    void define_mesh(WorkerState&, Reader&, uint32_t)
    void define_sharding(WorkerState&, Reader&, uint32_t)
    void free_slot(WorkerState&, uint32_t)
    void upload(WorkerState&, const WorkerLink&, Reader&, uint32_t)
    void run_redistribute(WorkerState&, Reader&, uint32_t, cbool)
    void get_value(WorkerState&, const WorkerLink&, Reader&, uint32_t)
    void describe_slot(WorkerState&, const WorkerLink&, Reader&, uint32_t)
    void sync(WorkerState&, const WorkerLink&, Reader&)

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
    void store_kernel_outputs(WorkerState&, const KernelCall&, const vector[Tensor]&)
    void store_kernel_failure(WorkerState&, const KernelCall&, const string&)

cdef extern from *:
    """
    #include <ATen/Parallel.h>
    #include <c10/core/DeviceGuard.h>

    // Runs one record; a malformed one becomes a failure, and the rest of its batch is skipped.
    template <class Run>
    static bool dtorch_guarded(dtorch::WorkerState& state, Run&& run) {
      try {
        run();
        return true;
      } catch (const std::exception& error) {
        dtorch::make_failure(state, dtorch::message_of(error));
        return false;
      }
    }
    typedef void (*dtorch_record_function)(void* worker, dtorch::Reader& reader);
    static bool dtorch_record(dtorch::WorkerState& state, void* worker, const uint32_t* at,
                              const uint32_t* end, uint32_t* words,
                              dtorch_record_function function) {
      return dtorch_guarded(state, [&] {
        dtorch::Reader reader = dtorch::Reader::record(at, end);
        *words = reader.words();
        function(worker, reader);
      });
    }
    // Below autograd, but not InferenceMode: values read in this process stay usable for
    // autograd and in-place operators.
    struct dtorch_below_autograd {
      dtorch_below_autograd() : guard(std::make_unique<at::AutoDispatchBelowADInplaceOrView>()) {}
      std::unique_ptr<at::AutoDispatchBelowADInplaceOrView> guard;
    };
    static dtorch::WorkerState* dtorch_new_state(int worker, const std::string& device,
                                                 const std::string& host, void* make_group) {
      return new dtorch::WorkerState(worker, c10::Device(device), host,
                                     *static_cast<dtorch::MakeGroup*>(make_group));
    }
    """
    ctypedef void (*record_function "dtorch_record_function")(void* worker, Reader& reader) noexcept nogil
    cbool dtorch_record(WorkerState&, void*, const uint32_t*, const uint32_t*, uint32_t*,
                        record_function) nogil
    cppclass below_autograd "dtorch_below_autograd":
        below_autograd()
    WorkerState* dtorch_new_state(int, const string&, const string&, void*) except +
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
    elif kind == Kind.kShutdown:
        state.stopped = True
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
        with gil:
            python_kernel(state, call)


cdef void python_kernel(WorkerState* state, const KernelCall& call) noexcept:
    cdef vector[Tensor] results
    try:
        outputs = [
            (call.outputs[i].dtype, tuple(call.outputs[i].sizes),
             tuple(call.outputs[i].local_sizes), tuple(call.outputs[i].local_offsets))
            for i in range(<int>call.outputs.size())
        ]
        for tensor in registry.run(call.name.decode(), call.packed, outputs):
            results.push_back(THPVariable_Unpack(tensor))
        store_kernel_outputs(state[0], call, results)
    except BaseException as error:
        store_kernel_failure(
            state[0], call, f"kernel {call.name.decode()}: {type(error).__name__}: {error}".encode())


cdef void execute_batch(Context* context, Batch* batch) noexcept nogil:
    cdef const uint32_t* at = batch.begin
    cdef uint32_t words = 0
    context.state.record = batch.first_record
    while at < batch.end and not context.state.stopped:
        if not dtorch_record(context.state[0], context, at, batch.end, &words, execute):
            break
        at += words
        context.state.record += 1


cdef extern from "worker/call.h" namespace "dtorch" nogil:
    void c_live_memory "dtorch::live_memory"(const WorkerState&, int64_t* nbytes, int64_t* tensors)


def live_memory():
    """(bytes, tensors) alive on the worker whose thread calls, and operators it has executed."""
    cdef int64_t nbytes = 0, tensors = 0
    c_live_memory(this_worker()[0], &nbytes, &tensors)
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


cdef class Worker:
    """One worker's state and loop.

    index: its number among the workers. device: where its tensors live. link: capsule of its
    end of the transport. make_group: capsule of the function that makes communication groups.
    """

    cdef Context context
    cdef object keep

    def __init__(self, int index, str device, str host, link, make_group):
        self.keep = (link, make_group)
        self.context.link = <WorkerLink*>PyCapsule_GetPointer(link, "dtorch.WorkerLink")
        self.context.state = dtorch_new_state(
            index, device.encode(), host.encode(), PyCapsule_GetPointer(make_group, "dtorch.MakeGroup"))

    def __dealloc__(self):
        del self.context.state

    @property
    def num_operators(self):
        """Operators executed so far."""
        return self.context.state.num_operators

    def note_flight(self):
        """Have this worker write its process's flight record."""
        self.context.state.notes_flight = True

    def run(self, int num_threads):
        """Execute until a shutdown record comes. num_threads: for each operator."""
        set_num_threads(num_threads)
        set_this_worker(self.context.state)
        cdef below_autograd* guard = new below_autograd()
        with nogil:
            self.loop()
        del guard

    def execute_bytes(self, bytes batch):
        """Execute a batch given as bytes; for tests of the decoder."""
        cdef Batch parsed
        cdef vector[uint32_t] words
        words.resize(len(batch) // 4)
        cdef const char* source = batch
        cdef char* target = <char*>words.data()
        for i in range(words.size() * 4):
            target[i] = source[i]
        parsed.begin = words.data()
        parsed.end = words.data() + words.size()
        cdef below_autograd* guard = new below_autograd()
        with nogil:
            execute_batch(&self.context, &parsed)
        del guard
        self.context.state.stopped = False

    cdef void loop(self) noexcept nogil:
        cdef Batch batch
        while not self.context.state.stopped:
            if not self.context.link.receive(self.context.link.self, &batch, 2000):
                continue
            execute_batch(&self.context, &batch)
            self.context.link.progress(self.context.link.self, batch.first_record + batch.records)
            batch = Batch()
