# What a worker holds, for its Cython.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector

from profiling.timeline cimport Timeline
from transport.link cimport Batch


cdef extern from "device/streams.h" namespace "dtorch" nogil:
    cppclass Device "c10::Device":
        cbool is_cpu()
    cppclass DeviceStreams:
        cbool exist()
        void enter() except +


cdef extern from "wire/activity.h" namespace "dtorch" nogil:
    cppclass Activity:
        void bind()
        void begin(uint32_t kind, uint32_t number, uint32_t site)
        void step()
        void rest()
        void name_kernel(const string&)


cdef extern from "worker/captured_part.h" namespace "dtorch" nogil:
    cppclass GraphMaker:
        pass


cdef extern from "worker/state.h" namespace "dtorch" nogil:
    cppclass MakeGroup:
        pass
    cppclass WorkerGraphs:
        void set_executed(uint32_t graph, uint64_t records)
    cppclass WorkerState:
        WorkerState(int worker, int num_workers, const string& device, const string& host,
                    MakeGroup, shared_ptr[WorkerGraphs], uint32_t graph) except +
        int worker
        Device device
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
        string operator_name(uint32_t number)
        cbool stopped
        cbool keeps_batches
        void keep(const Batch&)
        cbool has_others
        string broken
        vector[string] batches
        Timeline timeline
        int64_t busy, idle, batch_began


cdef extern from "worker/this_worker.h" namespace "dtorch" nogil:
    WorkerState* this_worker()
    void set_this_worker(WorkerState*)
    cppclass BelowAutograd:
        BelowAutograd()
