# distutils: language = c++
"""The controller: takes records in windows and sends each as one batch to all workers.

It runs in a thread of its own and never takes the GIL. It never waits for workers: how far
they are only decides how much it lets gather before it sends.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.deque cimport deque
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from profiling.timeline cimport Event, Timeline, room_for, steady_ns
from transport.link cimport Batch, ControllerLink, Transfer


cdef extern from "capture/record_queue.h" namespace "dtorch" nogil:
    cppclass RecordQueue:
        @staticmethod
        RecordQueue& get()
        cbool take(uint32_t max_words, Batch* batch)
        uint64_t pending_records()
        cbool flush_wanted()
        void flush_done()
        void wait(int64_t microseconds)
        void set_executed(uint64_t records, uint64_t bytes)
        uint64_t bytes_executed()

cdef extern from "capture/transfers.h" namespace "dtorch" nogil:
    cppclass Transfers:
        @staticmethod
        Transfers& get()
        vector[Transfer] take()

cdef extern from "controller/tracer.h" namespace "dtorch" nogil:
    cppclass NewPlan "dtorch::Tracer::NewPlan":
        uint32_t number
        vector[uint32_t] words
    cppclass Rewrite "dtorch::Tracer::Rewrite":
        uint32_t number, num_own_slots
        vector[uint32_t] operators, regions
    cppclass TraceCounters:
        uint64_t windows, plans, replays, replayed_records, departures
    cppclass Tracer:
        Tracer(void* sender, void (*send)(void*, const Batch*, uint64_t) noexcept, cbool enabled)
        void take(const Batch&, cbool may_hold, cbool are_fed)
        void feed()
        void release()
        cbool is_holding()
        cbool take_new_plan(NewPlan*)
        void rewrite(const Rewrite&)
        const TraceCounters& counters()
        Timeline& timeline()

cdef extern from *:
    """
    #include "transport/backoff.h"
    static uint64_t bytes_of(const dtorch::Transfer& transfer) { return transfer.tensor.nbytes(); }
    static void note_batch(dtorch::Timeline& timeline, const dtorch::Batch& batch, int64_t began) {
      dtorch::Event event;
      event.begin = began;
      event.end = dtorch::steady_ns();
      event.record = batch.first_record;
      event.kind = static_cast<uint16_t>(dtorch::ControllerEvent::kBatch);
      event.amounts[0] = batch.records;
      event.amounts[1] = static_cast<int64_t>(batch.bytes());
      timeline.note(event);
    }
    """
    void note_batch(Timeline&, const Batch&, int64_t began) nogil
    void pause_for "dtorch::sleep_briefly"(int64_t microseconds) nogil
    uint64_t bytes_of(const Transfer&) nogil

cdef extern from "<mutex>" namespace "std" nogil:
    cppclass mutex:
        void lock()
        void unlock()
        cbool try_lock()


cdef void send_batch(void* controller, const Batch* batch, uint64_t program_bytes) noexcept nogil:
    (<Controller>controller).send(batch, program_bytes)


cdef class Controller:
    """Sends the queue's records over the given links (capsules).

    window_bytes: a window is at most this large, unless one record is larger.
    gather_microseconds: while workers are busy, how long records may gather. traces: whether what
    comes again is replayed.
    """

    cdef vector[ControllerLink*] links
    cdef object keep
    cdef uint32_t window_words
    cdef uint64_t gather_records
    cdef int64_t gather_microseconds
    cdef volatile cbool stopping
    cdef mutex sending  # held while records are taken and sent
    cdef uint64_t num_batches
    cdef uint64_t sent_records
    cdef uint64_t executed_records
    cdef uint64_t sent_bytes  # of records and the data beside them, as the queue counts
    # (records, bytes) at the end of each batch that is not executed yet
    cdef deque[pair[uint64_t, uint64_t]] under_way
    cdef uint64_t wire_bytes  # of the batches
    cdef int64_t busy_ns
    cdef Tracer* tracer

    def __init__(self, links, *, uint32_t window_bytes, int64_t gather_microseconds, cbool traces):
        self.keep = list(links)
        for link in links:
            self.links.push_back(<ControllerLink*>PyCapsule_GetPointer(link, "dtorch.ControllerLink"))
        self.window_words = window_bytes // 4
        self.gather_records = 256
        self.gather_microseconds = gather_microseconds
        # Before the thread runs: a client that flushes may send the first batches itself.
        self.sent_bytes = RecordQueue.get().bytes_executed()
        self.tracer = new Tracer(<void*>self, send_batch, traces)

    def __dealloc__(self):
        del self.tracer

    @property
    def num_batches(self):
        """Batches sent so far, each to all workers."""
        return self.num_batches

    @property
    def bytes_sent(self):
        """Of the batches sent so far, to each worker; the data beside them not counted."""
        return self.wire_bytes

    @property
    def busy_seconds(self):
        """Time spent on taking records, planning and sending, by whichever thread did it."""
        return self.busy_ns * 1e-9

    def begin_timeline(self, size_t capacity):
        """Note batches and windows from now on, the last `capacity` of them."""
        cdef vector[Event] room = room_for(capacity)
        with nogil:
            self.sending.lock()
            self.tracer.timeline().start(room)
            self.sending.unlock()

    def take_timeline(self):
        """(events as bytes, how many were lost) since begin_timeline(); ends and forgets them."""
        cdef Timeline* timeline = &self.tracer.timeline()
        with nogil:
            self.sending.lock()
            timeline.stop()
            self.sending.unlock()
        events = timeline.bytes(0, timeline.size())
        lost = timeline.lost()
        timeline.clear()
        return events, lost

    def trace_counters(self):
        """What became of the windows so far, by name."""
        cdef const TraceCounters* counters = &self.tracer.counters()
        return {"windows": counters.windows, "plans": counters.plans, "replays": counters.replays,
                "replayed_records": counters.replayed_records, "departures": counters.departures}

    def new_plan(self, int64_t microseconds):
        """(number, records as bytes) of a window that has become a plan, or None after that time."""
        cdef NewPlan plan
        cdef cbool found = False
        with nogil:
            while not found and microseconds > 0 and not self.stopping:
                self.sending.lock()
                found = self.tracer.take_new_plan(&plan)
                self.sending.unlock()
                if not found:
                    pause_for(5000)
                    microseconds -= 5000
        if not found:
            return None
        return plan.number, (<const char*>plan.words.data())[:plan.words.size() * 4]

    def rewrite(self, uint32_t number, uint32_t num_own_slots, operators, regions):
        """Have a plan run other records in the place of some, from its next run on.

        num_own_slots: for tensors that only these have. operators, regions: words, as
        wire/record.h says of kRewritePlan.
        """
        cdef Rewrite rewrite
        rewrite.number, rewrite.num_own_slots = number, num_own_slots
        rewrite.operators, rewrite.regions = operators, regions
        with nogil:
            self.sending.lock()
            self.tracer.rewrite(rewrite)
            self.sending.unlock()

    def flush(self):
        """Send what there is, at once and on the calling thread: it waits for a value.

        One hop to another thread less than waking the controller's own.
        """
        with nogil:
            self.send_all(&RecordQueue.get(), False)

    def stop(self):
        """Have run() return once everything is sent and executed."""
        self.stopping = True

    def abandon(self):
        """Have run() return now; what was not sent is lost."""
        self.executed_records = self.sent_records
        self.stopping = True

    def run(self):
        with nogil:
            self.loop()

    cdef void loop(self) noexcept nogil:
        cdef RecordQueue* queue = &RecordQueue.get()
        cdef uint64_t pending, seen = 0
        cdef cbool busy, flush
        cdef int64_t patience = 100
        while True:
            self.look_at_progress(queue)
            if self.executed_records != seen:
                seen = self.executed_records
                patience = 100
            pending = queue.pending_records()
            if pending == 0:
                busy = self.executed_records < self.sent_records
                if self.tracer.is_holding() and (queue.flush_wanted() or not busy):
                    # The client has gone on to something else.
                    queue.wait(200)
                    if queue.pending_records() == 0:
                        self.release()
                    continue
                if self.stopping and not busy:
                    return
                if self.tracer.is_holding():
                    self.feed()
                    patience = min(patience, 200)
                queue.flush_done()
                # What was begun must be completed: look again soon while workers are busy,
                # and less often the longer an operator takes.
                queue.wait(patience if busy else 2000)
                patience = min(2000, patience + patience // 4)
                continue
            if (pending < self.gather_records and not queue.flush_wanted()
                    and self.executed_records < self.sent_records):
                pause_for(self.gather_microseconds)
            flush = queue.flush_wanted()
            queue.flush_done()
            self.send_all(queue, not flush)

    cdef void send_all(self, RecordQueue* queue, cbool may_hold) noexcept nogil:
        cdef Batch batch
        self.sending.lock()
        cdef int64_t began = steady_ns()
        while queue.take(self.window_words, &batch):
            self.tracer.take(batch, may_hold, self.are_fed())
        if not may_hold:
            self.tracer.release()
        self.busy_ns += steady_ns() - began
        self.sending.unlock()

    # Whether workers have more to do when they are through with the batch at hand.
    cdef cbool are_fed(self) noexcept nogil:
        return (self.under_way.size() > 1
                and self.sent_records - self.under_way.front().first >= self.gather_records)

    cdef void feed(self) noexcept nogil:
        self.sending.lock()
        if not self.are_fed():
            self.tracer.feed()
        self.sending.unlock()

    cdef void release(self) noexcept nogil:
        self.sending.lock()
        cdef int64_t began = steady_ns()
        self.tracer.release()
        self.busy_ns += steady_ns() - began
        self.sending.unlock()

    # program_bytes: of the records that the batch stands for.
    cdef void send(self, const Batch* batch, uint64_t program_bytes) noexcept nogil:
        # Data first: a worker that meets the record may then wait for it.
        cdef cbool noted = self.tracer.timeline().is_on()
        cdef int64_t began = steady_ns() if noted else 0
        cdef vector[Transfer] transfers = Transfers.get().take()
        cdef size_t i
        for link in self.links:
            for i in range(transfers.size()):
                link.send_transfer(link.self, &transfers[i])
            link.send(link.self, batch)
        if noted:
            note_batch(self.tracer.timeline(), batch[0], began)
        for i in range(transfers.size()):
            self.sent_bytes += bytes_of(transfers[i])
        self.num_batches += 1
        self.sent_records = batch.first_record + batch.records
        self.sent_bytes += program_bytes
        self.wire_bytes += batch.bytes()
        self.under_way.push_back(pair[uint64_t, uint64_t](self.sent_records, self.sent_bytes))

    cdef void look_at_progress(self, RecordQueue* queue) noexcept nogil:
        self.sending.lock()
        self.update_progress(queue)
        self.sending.unlock()

    cdef void update_progress(self, RecordQueue* queue) noexcept nogil:
        cdef uint64_t least = self.sent_records
        cdef uint64_t one
        for link in self.links:
            link.poll(link.self)
            one = link.executed(link.self)
            if one < least:
                least = one
        if least == self.executed_records:
            return
        self.executed_records = least
        cdef uint64_t bytes = 0
        while not self.under_way.empty() and self.under_way.front().first <= least:
            bytes = self.under_way.front().second
            self.under_way.pop_front()
        if bytes:
            queue.set_executed(least, bytes)
