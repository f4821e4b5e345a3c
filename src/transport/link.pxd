# The seam of transport/link.h, for the Cython rooms.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string

from libtorch cimport Tensor


cdef extern from "wire/record.h" namespace "dtorch" nogil:
    cppclass Home "dtorch::Home":
        pass
    cppclass PromiseName:
        Home home
        uint32_t id
        uint64_t place


cdef extern from "transport/link.h" namespace "dtorch" nogil:
    cppclass Chunk:
        uint32_t* words()
        void release()
        @staticmethod
        Chunk* create(uint32_t capacity) except +

    cppclass Batch:
        Batch()
        Batch(Chunk* chunk, const uint32_t* begin, const uint32_t* end, uint64_t first_record,
              uint32_t records)
        const uint32_t* begin
        const uint32_t* end
        uint64_t first_record
        uint32_t records
        size_t bytes()

    cppclass Transfer:
        uint64_t number
        Tensor tensor
        uint32_t sharding

    cppclass Failure:
        Failure()
        string text
        uint32_t site
        uint64_t record
        int32_t worker
        string host

    ctypedef shared_ptr[const Failure] FailurePtr

    cppclass Reply:
        Reply()
        Tensor value
        FailurePtr failure

    cppclass WorkerLink:
        void* self
        cbool (*receive)(void* self, Batch* batch, int64_t microseconds) noexcept
        cbool (*fetch)(void* self, uint64_t number, Tensor* part) noexcept
        cbool (*reply)(void* self, const PromiseName* promise, const Reply* reply) noexcept
        void (*progress)(void* self, uint64_t records) noexcept

    cppclass ControllerLink:
        void* self
        void (*send)(void* self, const Batch* batch) noexcept
        void (*send_transfer)(void* self, const Transfer* transfer) noexcept
        uint64_t (*executed)(void* self) noexcept
        void (*poll)(void* self) noexcept
