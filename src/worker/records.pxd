# The records that a worker is given, and what executes each.
from libc.stdint cimport int64_t, uint16_t, uint32_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector

from libtorch cimport Tensor
from transport.link cimport WorkerLink
from worker.state cimport WorkerState


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
        Kind kind()
        uint32_t count()
        uint32_t number()
        uint32_t site()
        void enter()


cdef extern from "wire/window.h" namespace "dtorch" nogil:
    uint32_t program_records(const uint32_t* record)


cdef extern from "worker/run_record.h" namespace "dtorch" nogil:
    ctypedef void (*ExecuteRecord)(void* worker, Reader& reader) noexcept nogil
    uint32_t run_record(WorkerState&, void* worker, const uint32_t* at, const uint32_t* end,
                        ExecuteRecord, uint16_t flags)
    void run_plan(WorkerState&, Reader&, uint32_t number, void* worker, ExecuteRecord)
    void refuse_record()


cdef extern from "worker/call.h" namespace "dtorch" nogil:
    void run_operator(WorkerState&, Reader&, uint32_t count, uint32_t number)


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


cdef extern from "worker/pending.h" namespace "dtorch" nogil:
    void run_redistribute(WorkerState&, Reader&, uint32_t, cbool)
    void settle_all(WorkerState&)


cdef extern from "worker/graph_records.h" namespace "dtorch" nogil:
    void wait_for_graph(WorkerState&, Reader&, uint32_t, uint32_t)
    void export_slot(WorkerState&, Reader&, uint32_t)
    void import_slot(WorkerState&, Reader&, uint32_t, uint32_t)
    void pass_turn(WorkerState&)
    void hear_before_batch(WorkerState&)


cdef extern from "worker/device_progress.h" namespace "dtorch" nogil:
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
        vector[int64_t] sizes, local_sizes, local_offsets
    cppclass KernelCall:
        string name, packed
        vector[KernelOutput] outputs
        cbool absent
    KernelCall read_kernel_call(WorkerState&, Reader&, uint32_t)
    void store_kernel_outputs(WorkerState&, const KernelCall&, const vector[Tensor]&) except +
    void store_kernel_failure(WorkerState&, const KernelCall&, const string&) except +
