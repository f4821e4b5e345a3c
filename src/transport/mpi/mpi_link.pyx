# distutils: language = c++
"""The transport over MPI: batches down a tree of ranks, values straight back to rank 0.

Rank 0 sends each batch once, to the first worker, whatever the number of workers; workers
hand it on to their two children. Progress comes back up the same tree. Data that differs by
worker and replies go directly. Everything is nonblocking, and nothing here takes the GIL.
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.mutex cimport mutex
from libcpp.unordered_set cimport unordered_set
from libcpp.vector cimport vector

from libtorch cimport Tensor
from transport.link cimport (
    Batch, Chunk, ControllerLink, PromiseName, Reply, Transfer, WorkerLink,
)
from transport.mpi.mpi_c cimport *


cdef extern from "transport/mpi/message.h" namespace "dtorch" nogil:
    int kTagReply, kTagRange
    cppclass Tags:
        Tags()
        Tags(uint32_t graph)
        int batch, progress, transfer
    size_t first_message_bytes(size_t)
    cppclass Outbox:
        void post(const void*, size_t, int rank, int tag, MPI_Comm)
        void keep_batch(const Batch&)
        char* keep_bytes(size_t)
        void keep_tensor(const Tensor&)
        size_t poll()
    cppclass Backoff:
        Backoff(int spins)
        void pause()
    void check_mpi(int, const char*)
    cppclass TransferInbox:
        TransferInbox(MPI_Comm, const Tags&, int spins)
        cbool take(uint64_t number, Outbox&, Tensor*)
    void answer_asks(uint64_t end, Outbox&, const Tags&, MPI_Comm)
    size_t write_reply(const Reply&, int worker, char* block, size_t room)
    Reply read_reply(const char* block, size_t room, size_t* rest) except +
    void send_part(Outbox&, const Transfer&, int worker, int rank, int tag, MPI_Comm)

cdef extern from "transport/mpi/replies.h" namespace "dtorch" nogil:
    cppclass NetworkReply:
        cbool poll()
        Reply reply
    cppclass SharedBoard:
        SharedBoard(char* memory, size_t size)
        int64_t allocate(size_t bytes)
        void release(int64_t place)
        char* at(int64_t place)
    void publish(char* block)
    cbool published(const char* block)
    void clear(char* block)
    size_t block_header()
    void abandon(vector[shared_ptr[NetworkReply]]& replies)
    shared_ptr[NetworkReply] expect_network(int rank, int tag, MPI_Comm comm)

cdef extern from "collectives/mpi/group_maker.h" namespace "dtorch":
    object mpi_group_maker(MPI_Comm, int)

cdef extern from *:
    """
    #include "wire/window.h"

    static bool is_shared(const dtorch::PromiseName& promise) {
      return promise.home == dtorch::Home::kShared;
    }
    static dtorch::Batch dtorch_batch(dtorch::Chunk* chunk, uint32_t words, uint64_t first) {
      const uint32_t* begin = chunk->words();
      uint32_t records = 0;
      for (uint32_t at = 0;
           at < words && begin[at] >= dtorch::kHeaderWords && begin[at] <= words - at;
           at += begin[at]) {
        records += dtorch::program_records(begin + at);
      }
      dtorch::Batch batch(chunk, begin, begin + words, first, records);
      chunk->release();
      return batch;
    }
    """
    cbool is_shared(const PromiseName&) nogil
    Batch dtorch_batch(Chunk*, uint32_t words, uint64_t first) nogil


# ---- a worker's end ------------------------------------------------------------------------------

cdef struct WorkerEnd:
    MPI_Comm comm
    Tags tags
    int rank            # in comm; rank 0 is the controller's
    int worker
    int parent
    int[2] children     # ranks, -1 for none
    int spins
    cbool same_node     # as rank 0
    char* board         # rank 0's shared memory, if same_node
    size_t board_size   # bytes
    uint64_t executed
    uint64_t[2] children_executed
    uint64_t reported
    uint64_t received   # records
    Outbox* outbox
    Outbox* replies     # of the worker's thread and of the one that hands over a device's values
    mutex* replying
    TransferInbox* transfers


cdef size_t poll_sends(WorkerEnd* end) noexcept nogil:
    """Completes what has been sent; returns what is left."""
    end.replying.lock()
    cdef size_t left = end.replies.poll()
    end.replying.unlock()
    return left + end.outbox.poll()


cdef void forward(WorkerEnd* end, const Batch* batch) noexcept nogil:
    cdef int child
    for i in range(2):
        child = end.children[i]
        if child >= 0:
            end.outbox.keep_batch(batch[0])
            end.outbox.post(batch.begin, batch.bytes(), child, end.tags.batch, end.comm)


cdef void hear_progress(WorkerEnd* end) noexcept nogil:
    cdef int found = 0
    cdef MPI_Message message
    cdef MPI_Status status
    for i in range(2):
        if end.children[i] < 0:
            continue
        check_mpi(MPI_Improbe(end.children[i], end.tags.progress, end.comm, &found, &message,
                              &status),
                  "MPI_Improbe")
        while found:
            check_mpi(MPI_Mrecv(&end.children_executed[i], 8, MPI_BYTE, &message,
                                MPI_STATUS_IGNORE),
                      "MPI_Mrecv")
            check_mpi(MPI_Improbe(end.children[i], end.tags.progress, end.comm, &found, &message,
                                  &status),
                      "MPI_Improbe")


cdef void tell_progress(WorkerEnd* end) noexcept nogil:
    cdef uint64_t least = end.executed
    for i in range(2):
        if end.children[i] >= 0 and end.children_executed[i] < least:
            least = end.children_executed[i]
    if least == end.reported:
        return
    end.reported = least
    cdef uint64_t* bytes = <uint64_t*>end.outbox.keep_bytes(8)
    bytes[0] = least
    end.outbox.post(bytes, 8, end.parent, end.tags.progress, end.comm)


cdef cbool try_receive(WorkerEnd* end, Batch* batch) noexcept nogil:
    cdef int found = 0, size = 0
    cdef MPI_Message message
    cdef MPI_Status status
    check_mpi(MPI_Improbe(end.parent, end.tags.batch, end.comm, &found, &message, &status),
              "MPI_Improbe")
    if not found:
        return False
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count")
    cdef Chunk* chunk = Chunk.create(<uint32_t>((size + 3) // 4))
    check_mpi(MPI_Mrecv(chunk.words(), size, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv")
    batch[0] = dtorch_batch(chunk, <uint32_t>(size // 4), end.received)
    end.received += batch.records
    forward(end, batch)
    return True


cdef cbool worker_receive(void* self, Batch* batch, int64_t microseconds) noexcept nogil:
    cdef WorkerEnd* end = <WorkerEnd*>self
    cdef Backoff* backoff = new Backoff(end.spins)
    cdef cbool found = False
    cdef int steps = 0
    # A step takes a microsecond at least. The backoff grows with them, so they are counted.
    while not found and steps < microseconds:
        steps += 1
        found = try_receive(end, batch)
        if not found:
            poll_sends(end)
            hear_progress(end)
            tell_progress(end)
            backoff.pause()
    del backoff
    return found


cdef cbool worker_fetch(void* self, uint64_t number, Tensor* part) noexcept nogil:
    cdef WorkerEnd* end = <WorkerEnd*>self
    return end.transfers.take(number, end.outbox[0], part)


cdef cbool worker_reply(void* self, const PromiseName* promise, const Reply* reply) noexcept nogil:
    cdef WorkerEnd* end = <WorkerEnd*>self
    cdef char* block
    cdef size_t size
    cdef uint64_t begin, stride
    cdef int tag = kTagReply + <int>(promise.id % kTagRange)
    if is_shared(promise[0]) and end.same_node:
        # place: where the replies of all workers begin; each has a block of the same size. It
        # comes from a batch, which may be malformed.
        stride = (promise.place & 0xffffff) * 64
        begin = (promise.place >> 24) * 64 + end.worker * stride
        if stride < block_header() + reply_room(0) or begin + stride > end.board_size:
            return False
        if reply.value.defined() and reply_room(reply.value.nbytes()) > stride - block_header():
            return False
        block = end.board + begin
        write_reply(reply[0], end.worker, block + block_header(), stride - block_header())
        publish(block)
        return True
    size = first_message_bytes(reply.value.nbytes() if reply.value.defined() else 0)
    end.replying.lock()
    block = end.replies.keep_bytes(size)
    size = write_reply(reply[0], end.worker, block, size)
    end.replies.post(block, size, 0, tag, end.comm)
    post_rest(end, reply, size, tag)
    end.replying.unlock()
    return True


cdef extern from *:
    """
    // The data of a value that did not fit the first message.
    static void dtorch_post_rest(dtorch::Outbox& outbox, const dtorch::Reply& reply, size_t written,
                                 int tag, MPI_Comm comm) {
      if (reply.failure || !reply.value.defined() || reply.value.nbytes() == 0) return;
      if (written >= sizeof(dtorch::TensorHeader) + reply.value.nbytes()) return;
      outbox.keep_tensor(reply.value);
      outbox.post(reply.value.const_data_ptr(), reply.value.nbytes(), 0, tag, comm);
    }
    """
    void dtorch_post_rest(Outbox&, const Reply&, size_t, int, MPI_Comm) nogil


cdef void post_rest(WorkerEnd* end, const Reply* reply, size_t written, int tag) noexcept nogil:
    dtorch_post_rest(end.replies[0], reply[0], written, tag, end.comm)


cdef void worker_progress(void* self, uint64_t records) noexcept nogil:
    cdef WorkerEnd* end = <WorkerEnd*>self
    end.executed = records
    poll_sends(end)
    hear_progress(end)
    tell_progress(end)


cdef MPI_Comm comm_of(object comm) except *:
    """The C handle of an mpi4py communicator."""
    from mpi4py import MPI
    return (<MPI_Comm*><uintptr_t>MPI._addressof(comm))[0]


cdef class MPIWorkerLink:
    """A worker rank's link to rank 0, and to its children in the tree, for one graph.

    comm: of all ranks. worker: this one's number. ranks: of all workers. board: rank 0's
    SharedMemory where this rank is on its node, else None.
    """

    cdef WorkerEnd end
    cdef WorkerLink link
    cdef object keep

    def __init__(self, comm, int worker, ranks, board, int spins, uint32_t graph=0):
        self.keep = (comm, board)
        self.end.tags = Tags(graph)
        self.end.comm = comm_of(comm)
        MPI_Comm_set_errhandler(self.end.comm, MPI_ERRORS_RETURN)
        self.end.rank = ranks[worker]
        self.end.worker = worker
        position = worker - (1 if ranks[0] == 0 else 0)  # a cohosted worker is not in the tree
        tree = [rank for rank in ranks if rank != 0]
        self.end.parent = 0 if position == 0 else tree[(position - 1) // 2]
        for i in range(2):
            child = 2 * position + 1 + i
            self.end.children[i] = tree[child] if child < len(tree) else -1
        self.end.spins = spins
        self.end.same_node = board is not None
        if board is not None:
            self.end.board = (<SharedMemory>board).memory
            self.end.board_size = (<SharedMemory>board).size
        self.end.outbox = new Outbox()
        self.end.replies = new Outbox()
        self.end.replying = new mutex()
        self.end.transfers = new TransferInbox(self.end.comm, self.end.tags, spins)
        self.link.self = &self.end
        self.link.receive = worker_receive
        self.link.fetch = worker_fetch
        self.link.reply = worker_reply
        self.link.progress = worker_progress

    def __dealloc__(self):
        del self.end.outbox
        del self.end.replies
        del self.end.replying
        del self.end.transfers

    def worker_end(self):
        return PyCapsule_New(&self.link, "dtorch.WorkerLink", NULL)

    def drain(self, double seconds):
        """Hear of the children's end, tell the parent, complete all sends: before MPI_Finalize.

        Returns whether that was done within the time.
        """
        cdef Backoff* backoff = new Backoff(self.end.spins)
        cdef int64_t until = now_us() + <int64_t>(seconds * 1e6)
        cdef cbool done = False
        with nogil:
            while not done and now_us() < until:
                hear_progress(&self.end)
                tell_progress(&self.end)
                done = poll_sends(&self.end) == 0 and self.end.reported >= self.end.executed
                backoff.pause()
        del backoff
        return done


# ---- rank 0's end --------------------------------------------------------------------------------

cdef struct ControllerEnd:
    MPI_Comm comm
    Tags tags
    int first           # the rank at the top of the tree
    int* ranks          # of the workers in the tree
    int* workers        # their numbers
    int count
    uint64_t executed
    uint64_t num_sends
    uint64_t transfers_end  # above all numbers of data sent
    Outbox* outbox


cdef void controller_send(void* self, const Batch* batch) noexcept nogil:
    cdef ControllerEnd* end = <ControllerEnd*>self
    end.outbox.keep_batch(batch[0])
    end.outbox.post(batch.begin, batch.bytes(), end.first, end.tags.batch, end.comm)
    end.num_sends += 1


cdef void controller_send_transfer(void* self, const Transfer* transfer) noexcept nogil:
    cdef ControllerEnd* end = <ControllerEnd*>self
    for i in range(end.count):
        send_part(end.outbox[0], transfer[0], end.workers[i], end.ranks[i], end.tags.transfer,
                  end.comm)
    end.transfers_end = transfer.number + 1


cdef uint64_t controller_executed(void* self) noexcept nogil:
    return (<ControllerEnd*>self).executed


cdef void controller_poll(void* self) noexcept nogil:
    cdef ControllerEnd* end = <ControllerEnd*>self
    cdef int found = 0
    cdef MPI_Message message
    cdef MPI_Status status
    end.outbox.poll()
    answer_asks(end.transfers_end, end.outbox[0], end.tags, end.comm)
    check_mpi(MPI_Improbe(end.first, end.tags.progress, end.comm, &found, &message, &status),
              "MPI_Improbe")
    while found:
        check_mpi(MPI_Mrecv(&end.executed, 8, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv")
        check_mpi(MPI_Improbe(end.first, end.tags.progress, end.comm, &found, &message, &status),
                  "MPI_Improbe")


cdef class MPILink:
    """Rank 0's link to the worker ranks, for one graph; values come back over the main one's.

    comm: of all ranks. ranks: of all workers, by number. same_node: whether each is on rank
    0's node. board: rank 0's SharedMemory or None. home: forces "shared" or "network".
    """

    cdef ControllerEnd end
    cdef ControllerLink link
    cdef vector[int] ranks, workers, rank_of_worker
    cdef vector[cbool] shares
    cdef SharedBoard* board
    cdef unordered_set[PyObject*] replies  # that are alive
    cdef object keep
    cdef int spins

    def __init__(self, comm, ranks, same_node, board, str home, int spins, uint32_t graph=0):
        self.keep = (comm, board)
        self.end.tags = Tags(graph)
        self.end.comm = comm_of(comm)
        MPI_Comm_set_errhandler(self.end.comm, MPI_ERRORS_RETURN)
        cdef bint share
        for worker, rank in enumerate(ranks):
            self.rank_of_worker.push_back(rank)
            share = board is not None and same_node[worker] and home != "network"
            self.shares.push_back(share)
            if rank != 0:
                self.ranks.push_back(rank)
                self.workers.push_back(worker)
        self.spins = spins
        self.end.first = self.ranks[0]
        self.end.ranks = self.ranks.data()
        self.end.workers = self.workers.data()
        self.end.count = self.ranks.size()
        self.end.outbox = new Outbox()
        if board is not None:
            self.board = new SharedBoard((<SharedMemory>board).memory, (<SharedMemory>board).size)
        self.link.self = &self.end
        self.link.send = controller_send
        self.link.send_transfer = controller_send_transfer
        self.link.executed = controller_executed
        self.link.poll = controller_poll

    def __dealloc__(self):
        del self.end.outbox
        del self.board

    def controller_end(self):
        return PyCapsule_New(&self.link, "dtorch.ControllerLink", NULL)

    @property
    def num_sends(self):
        """Messages with batches that rank 0 has sent."""
        return self.end.num_sends

    def check(self):
        """A rank that dies ends the job by itself: the launcher and the watchers see to it."""

    def expect(self, uint32_t number, size_t num_workers, members, nbytes):
        """(replies, promise) for a request that the given workers answer."""
        members = [worker for worker in members if self.rank_of_worker[worker] != 0]
        shared = [worker for worker in members if self.shares[worker]]
        place = 0
        home = 2
        cdef int64_t at = -1
        # Every worker has a block of the same size, in units of 64 bytes.
        units = (block_header() + reply_room(nbytes) + 63) // 64
        if shared and units < (1 << 24):
            at = self.board.allocate(units * 64 * num_workers)
            if at >= 0:
                place = (at // 64) << 24 | units
                home = 1
        if home == 2:
            shared = []
        network = [worker for worker in members if worker not in shared]
        replies = MPIReplies(self, num_workers)
        replies.start(number, shared, network, at if home == 1 else -1, units * 64)
        return replies, (home, number, place)

    def have_ended(self):
        """Whether all workers have executed their last record, and nothing is under way."""
        with nogil:
            controller_poll(&self.end)
        return self.end.executed == <uint64_t>-1 and self.end.outbox.poll() == 0

    def drain(self, double seconds):
        """Complete all sends: before MPI_Finalize. Returns whether it was done within the time."""
        cdef int64_t until = now_us() + <int64_t>(seconds * 1e6)
        cdef cbool done = False
        cdef Backoff* backoff = new Backoff(self.spins)
        with nogil:
            while not done and now_us() < until:
                done = self.end.outbox.poll() == 0
                backoff.pause()
        del backoff
        return done

    def receive_all(self, double seconds):
        """Complete the replies that are still held, which workers may have yet to send.

        Returns whether all came within the time.
        """
        cdef int64_t until = now_us() + <int64_t>(seconds * 1e6)
        cdef cbool done = False
        cdef Backoff* backoff = new Backoff(self.spins)
        try:
            while not done and now_us() < until:
                done = True
                for pointer in self.replies:
                    done = (<MPIReplies>pointer).look() and done
                backoff.pause()
        finally:
            del backoff
        return done

    def detach(self):
        """Take the replies' content out of MPI's hands: before MPI_Finalize."""
        for pointer in self.replies:
            (<MPIReplies>pointer).detach()


cdef extern from *:
    """
    static size_t reply_room(size_t nbytes) {
      return sizeof(dtorch::TensorHeader) + std::max(nbytes, dtorch::kTextBytes);
    }
    """
    size_t reply_room(size_t nbytes) nogil


# A future in a reference cycle is cleared piece by piece, and the owner is needed to the last.
@cython.no_gc_clear
cdef class MPIReplies:
    """The answers of worker ranks to one request: some in shared memory, some by message."""

    cdef MPILink owner
    cdef size_t num_workers
    cdef int64_t at
    cdef size_t stride
    cdef vector[int] shared_workers, network_workers
    cdef vector[shared_ptr[NetworkReply]] network
    cdef mutex looking  # threads that wait for one value: MPI lets one at a time test a request
    cdef cbool complete
    cdef cbool detached
    cdef object kept  # parts() of one that was complete when MPI ended

    def __cinit__(self):
        self.at = -1

    def __init__(self, MPILink owner, size_t num_workers):
        self.owner = owner
        self.num_workers = num_workers
        owner.replies.insert(<PyObject*>self)

    cdef start(self, uint32_t number, shared, network, int64_t at, size_t stride):
        self.at = at
        self.stride = stride
        for worker in shared:
            self.shared_workers.push_back(worker)
            clear(self.owner.board.at(at) + <size_t>worker * stride)
        cdef int tag = kTagReply + <int>(number % kTagRange)
        for worker in network:
            self.network_workers.push_back(worker)
            self.network.push_back(
                expect_network(self.owner.rank_of_worker[<int>worker], tag, self.owner.end.comm))

    def __dealloc__(self):
        if self.owner is not None:
            self.owner.replies.erase(<PyObject*>self)
        self.let_go()

    cdef void let_go(self):
        if self.network.size():
            self.looking.lock()
            abandon(self.network)
            self.network.clear()
            self.looking.unlock()
        if self.at >= 0:
            if self.looks_complete():
                self.owner.board.release(self.at)
            # else: a worker may still write there; the block is never used again
            self.at = -1

    cdef detach(self):
        if self.look():
            self.kept = self.parts()
        self.let_go()
        self.shared_workers.clear()
        self.complete = self.detached = True

    cdef cbool looks_complete(self) noexcept nogil:
        for worker in self.shared_workers:
            if not published(self.owner.board.at(self.at) + <size_t>worker * self.stride):
                return False
        return True

    cdef cbool look(self) noexcept nogil:
        self.looking.lock()
        cdef cbool here = self.look_alone()
        self.looking.unlock()
        return here

    cdef cbool look_alone(self) noexcept nogil:
        if self.complete:
            return True
        if self.shared_workers.size() and not self.looks_complete():
            return False
        for i in range(self.network.size()):
            if not self.network[i].get().poll():
                return False
        self.complete = True
        return True

    def poll(self):
        """Whether all answers are here; never waits."""
        return self.look()

    def wait(self, int64_t microseconds):
        """Wait until all answers are here: polls, yields, then sleeps in small steps."""
        cdef Backoff* backoff = new Backoff(self.owner.spins)
        cdef cbool here = False
        cdef int64_t until
        try:
            with nogil:
                until = now_us() + microseconds
                while True:
                    here = self.look()
                    if here or now_us() >= until:
                        break
                    backoff.pause()
        finally:
            del backoff
        return here

    def parts(self):
        """[(value or None, failure or None)] by worker."""
        if self.detached:
            if self.kept is None:
                raise RuntimeError("the job's workers have ended before this value came")
            return self.kept
        found = [(None, None)] * self.num_workers
        cdef size_t rest
        for worker in self.shared_workers:
            found[worker] = reply_to_python(read_reply(
                self.owner.board.at(self.at) + <size_t>worker * self.stride + block_header(),
                self.stride - block_header(), &rest))
        for i in range(<int>self.network.size()):
            found[self.network_workers[i]] = reply_to_python(self.network[i].get().reply)
        return found


cdef extern from *:
    """
    static int64_t now_us() {
      return std::chrono::duration_cast<std::chrono::microseconds>(
          std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    """
    int64_t now_us() nogil


include "transport/reply_to_python.pxi"


# ---- shared memory of a node, groups -------------------------------------------------------------

cdef class SharedMemory:
    """Rank 0's shared window, as the ranks of its node see it. All of them call it together.

    node: communicator of the node's ranks, rank 0 of the job being its first. size: bytes.
    """

    cdef MPI_Win window
    cdef char* memory
    cdef readonly size_t size
    cdef object keep

    def __init__(self, node, size_t size):
        cdef MPI_Comm comm = comm_of(node)
        cdef char* own = NULL
        cdef int rank, unit
        cdef MPI_Aint length
        self.keep = node
        MPI_Comm_rank(comm, &rank)
        check_mpi(MPI_Win_allocate_shared(<MPI_Aint>(size if rank == 0 else 0), 1, MPI_INFO_NULL,
                                          comm, &own, &self.window), "MPI_Win_allocate_shared")
        check_mpi(MPI_Win_shared_query(self.window, 0, &length, &unit, &self.memory),
                  "MPI_Win_shared_query")
        check_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, self.window), "MPI_Win_lock_all")
        self.size = size

    def free(self):
        """All ranks of the node together, before MPI is finalized."""
        MPI_Win_unlock_all(self.window)
        MPI_Win_free(&self.window)


def group_maker(comm, int first_rank):
    """Capsule of the function that makes groups of workers; worker w is rank w + first_rank."""
    return mpi_group_maker(comm_of(comm), first_rank)
