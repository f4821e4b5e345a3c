# distutils: language = c++
"""Links to worker threads of this process, and replies whose home is memory."""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector

from libtorch cimport Tensor
from transport.link cimport (
    Batch, ControllerLink, PromiseName, Reply, Transfer, WorkerLink,
)


cdef extern from "transport/batch_queue.h" namespace "dtorch" nogil:
    cppclass BatchQueue:
        BatchQueue()
        void push(const Batch&)
        void push_transfer(const Transfer&)
        cbool pop(Batch*, int64_t)
        cbool take_transfer(uint64_t, Transfer*)
        int spins

cdef extern from *:
    """
    static uint64_t dtorch_executed(dtorch::BatchQueue* queue) {
      return queue->executed.load(std::memory_order_acquire);
    }
    static void dtorch_set_executed(dtorch::BatchQueue* queue, uint64_t records) {
      queue->executed.store(records, std::memory_order_release);
    }
    """
    uint64_t dtorch_executed(BatchQueue*) nogil
    void dtorch_set_executed(BatchQueue*, uint64_t) nogil

cdef extern from "transport/mailbox.h" namespace "dtorch" nogil:
    cppclass PendingReply:
        vector[Reply] parts
    cppclass Mailbox:
        @staticmethod
        Mailbox& get()
        shared_ptr[PendingReply] expect(uint32_t, size_t)
        void put(uint32_t, size_t, const Reply&)
        void forget(uint32_t)

cdef extern from *:
    """
    #include "sharding/parts.h"
    #include "transport/backoff.h"

    static int dtorch_left(dtorch::PendingReply* pending) {
      return pending->left.load(std::memory_order_acquire);
    }
    """
    int dtorch_left(PendingReply*) nogil
    Tensor own_part "dtorch::own_part"(const Transfer&, int worker) nogil


# One worker thread's end. Lives as long as its MemoryLink.
cdef struct Seat:
    BatchQueue* queue
    int worker
    int part
    WorkerLink link


cdef cbool seat_receive(void* self, Batch* batch, int64_t microseconds) noexcept nogil:
    return (<Seat*>self).queue.pop(batch, microseconds)


cdef cbool seat_fetch(void* self, uint64_t number, Tensor* part) noexcept nogil:
    cdef Seat* seat = <Seat*>self
    cdef Transfer transfer
    if not seat.queue.take_transfer(number, &transfer):
        return False
    part[0] = own_part(transfer, seat.worker)
    return True


cdef cbool seat_reply(void* self, const PromiseName* promise, const Reply* reply) noexcept nogil:
    cdef Seat* seat = <Seat*>self
    Mailbox.get().put(promise.id, seat.part, reply[0])
    return True


cdef void seat_progress(void* self, uint64_t records) noexcept nogil:
    dtorch_set_executed((<Seat*>self).queue, records)


cdef struct Seats:
    Seat* first
    int count


cdef void link_send(void* self, const Batch* batch) noexcept nogil:
    cdef Seats* seats = <Seats*>self
    for i in range(seats.count):
        seats.first[i].queue.push(batch[0])


cdef void link_send_transfer(void* self, const Transfer* transfer) noexcept nogil:
    cdef Seats* seats = <Seats*>self
    for i in range(seats.count):
        seats.first[i].queue.push_transfer(transfer[0])


cdef uint64_t link_executed(void* self) noexcept nogil:
    cdef Seats* seats = <Seats*>self
    cdef uint64_t least = dtorch_executed(seats.first[0].queue)
    cdef uint64_t one
    for i in range(1, seats.count):
        one = dtorch_executed(seats.first[i].queue)
        if one < least:
            least = one
    return least


cdef void link_poll(void* self) noexcept nogil:
    pass


cdef class MemoryLink:
    """Rank 0's link to its own worker threads, workers first_worker .. first_worker + count - 1.

    spins: how often a worker yields before it sleeps.
    """

    cdef Seats seats
    cdef int first_worker
    cdef vector[Seat] storage
    cdef ControllerLink link

    def __init__(self, int first_worker, int count, int spins):
        self.first_worker = first_worker
        self.storage.resize(count)
        cdef Seat* seat
        for i in range(count):
            seat = &self.storage[i]
            seat.queue = new BatchQueue()
            seat.queue.spins = spins
            seat.worker = first_worker + i
            seat.part = first_worker + i
            seat.link.self = seat
            seat.link.receive = seat_receive
            seat.link.fetch = seat_fetch
            seat.link.reply = seat_reply
            seat.link.progress = seat_progress
        self.seats.first = self.storage.data()
        self.seats.count = count
        self.link.self = &self.seats
        self.link.send = link_send
        self.link.send_transfer = link_send_transfer
        self.link.executed = link_executed
        self.link.poll = link_poll

    def __dealloc__(self):
        for i in range(self.seats.count):
            del self.storage[i].queue

    num_sends = 0

    def expect(self, uint32_t number, size_t num_workers, members, nbytes):
        """(replies, promise) for a request that the given workers answer."""
        here = [w for w in members if self.first_worker <= w < self.first_worker + self.seats.count]
        replies = MemoryReplies(number, num_workers, len(here), self.storage[0].queue.spins)
        return replies, (0, number, 0)

    def check(self):
        """Threads of this process do not get lost."""

    def have_ended(self):
        """Whether all workers have executed their last record."""
        return link_executed(&self.seats) == <uint64_t>-1

    def controller_end(self):
        return PyCapsule_New(&self.link, "dtorch.ControllerLink", NULL)

    def worker_end(self, int index):
        return PyCapsule_New(&self.storage[index].link, "dtorch.WorkerLink", NULL)


cdef class MemoryReplies:
    """The answers of this process's workers to one request."""

    cdef shared_ptr[PendingReply] pending
    cdef uint32_t number
    cdef int spins

    def __init__(self, uint32_t number, size_t num_parts, size_t num_expected, int spins):
        self.number = number
        self.spins = spins
        self.pending = Mailbox.get().expect(number, num_parts)
        set_left(self.pending.get(), <int>num_expected)

    def __dealloc__(self):
        Mailbox.get().forget(self.number)

    def poll(self):
        """Whether all answers are here; never waits."""
        return dtorch_left(self.pending.get()) == 0

    def wait(self, int64_t microseconds):
        """Wait until all answers are here: polls, yields, then sleeps in small steps."""
        cdef PendingReply* pending = self.pending.get()
        cdef cbool here
        with nogil:
            here = wait_for(pending, microseconds, self.spins)
        return here

    def parts(self):
        """[(value or None, failure or None)] by worker.

        A failure is (text, site, record, worker, host).
        """
        cdef PendingReply* pending = self.pending.get()
        return [reply_to_python(pending.parts[i]) for i in range(<int>pending.parts.size())]


cdef extern from *:
    """
    static void set_left(dtorch::PendingReply* pending, int left) { pending->left.store(left); }

    static bool wait_for(dtorch::PendingReply* pending, int64_t microseconds, int spins) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds);
      dtorch::Backoff backoff(spins);
      while (pending->left.load(std::memory_order_acquire) > 0) {
        if (std::chrono::steady_clock::now() >= until) return false;
        backoff.pause();
      }
      return true;
    }
    """
    void set_left(PendingReply*, int)
    cbool wait_for(PendingReply*, int64_t, int spins) nogil


include "transport/reply_to_python.pxi"
