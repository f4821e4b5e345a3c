# src/profiling/timeline.h for the Cython parts of the stages.
from libc.stdint cimport int64_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "profiling/timeline.h" namespace "dtorch" nogil:
    int64_t steady_ns()
    cppclass Event:
        pass
    cppclass Timeline:
        cbool is_on()
        void start(vector[Event])
        void stop()
        void clear()
        uint64_t noted()
        size_t size()
        uint64_t lost()
        string bytes(size_t first, size_t count) except +
    vector[Event] room_for "std::vector<dtorch::Event>"(size_t) except +
