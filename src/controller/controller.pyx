# distutils: language = c++
"""The controller: takes a graph's records in windows and sends each as one batch to all workers.

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
        RecordQueue& of(uint32_t graph)
        cbool take(uint32_t max_words, uint64_t end, Batch* batch)
        uint64_t pending_records()
        cbool flush_wanted()
        void flush_done()
        void wait(int64_t microseconds)
        Transfers transfers
        void set_executed(uint64_t records, uint64_t bytes)
        uint64_t bytes_executed()

cdef extern from "wire/record.h" namespace "dtorch":
    const uint32_t kMaxGraphs

cdef extern from "capture/transfers.h" namespace "dtorch" nogil:
    cppclass Transfers:
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
    cppclass Sender "dtorch::Tracer::Sender":
        void* self
        void (*send)(void*, const Batch*, uint64_t, cbool) noexcept
        void (*reach)(void*, uint32_t, uint64_t) noexcept
    cppclass Tracer:
        Tracer(const Sender&, RecordQueue&, cbool enabled, cbool for_graphs)
        void take(const Batch&, cbool are_fed)
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
    // The batch behind a record that says where its collectives come among those of all graphs.
    static dtorch::Batch with_turn(const dtorch::Batch& batch, uint32_t turn) {
      const uint32_t words = static_cast<uint32_t>(batch.end - batch.begin);
      auto* chunk = dtorch::Chunk::create(dtorch::kHeaderWords + words);
      dtorch::Writer writer(chunk->words());
      writer.begin(dtorch::Kind::kTurn, 0, turn, 0);
      writer.end();
      std::memcpy(writer.position(), batch.begin, batch.bytes());
      dtorch::Batch numbered(chunk, chunk->words(), writer.position() + words, batch.first_record,
                             batch.records);
      chunk->release();
      return numbered;
    }
    """
    Batch with_turn(const Batch&, uint32_t turn) nogil
    void note_batch(Timeline&, const Batch&, int64_t began) nogil
    void pause_for "dtorch::sleep_briefly"(int64_t microseconds) nogil
    uint64_t bytes_of(const Transfer&) nogil

cdef extern from "<mutex>" namespace "std" nogil:
    cppclass mutex:
        void lock()
        void unlock()
        cbool try_lock()


cdef void send_batch(void* controller, const Batch* batch, uint64_t program_bytes,
                     cbool communicates) noexcept nogil:
    (<Controller>controller).send(batch, program_bytes, communicates)


cdef void reach_records(void* controller, uint32_t graph, uint64_t records) noexcept nogil:
    (<Controller>controller).order.reach(graph, records)


cdef class SendOrder:
    """What the controllers of a job's graphs share: one order in which batches are sent.

    The collectives of different graphs run in the order of their batches, the same on every
    worker: libraries such as NCCL need one.
    """

    cdef mutex sending  # held while records are taken and sent
    cdef uint32_t next_turn
    cdef readonly bint has_several  # graphs, or had
    cdef vector[void*] controllers  # by graph; null where there is none

    def __init__(self):
        self.controllers.resize(kMaxGraphs)

    cdef void add(self, uint32_t graph, void* controller) noexcept nogil:
        self.sending.lock()
        self.controllers[graph] = controller
        self.has_several = self.has_several or graph != 0
        self.sending.unlock()

    # A batch that waits for records of another graph goes out behind them. `sending` is held.
    cdef void reach(self, uint32_t graph, uint64_t records) noexcept nogil:
        cdef void* other = self.controllers[graph]
        if other != NULL:
            (<Controller>other).send_up_to(records)


cdef class Controller:
    """Sends the records of a graph over the given links (capsules).

    order: of this and of the other graphs' controllers. window_bytes: a window is at
    most this large, unless one record is larger.
    gather_microseconds: while workers are busy, how long records may gather. traces: whether what
    comes again is replayed. for_graphs: whether workers run parts of that as graphs of their
    devices.
    """

    cdef vector[ControllerLink*] links
    cdef object keep
    cdef RecordQueue* queue
    cdef SendOrder order
    cdef readonly int graph
    cdef uint32_t window_words
    cdef uint64_t gather_records
    cdef int64_t gather_microseconds
    cdef int64_t hold_microseconds
    cdef volatile cbool stopping
    cdef uint64_t num_batches
    cdef uint64_t sent_records
    cdef uint64_t executed_records
    cdef uint64_t sent_bytes  # of records and the data beside them, as the queue counts
    # (records, bytes) at the end of each batch that is not executed yet
    cdef deque[pair[uint64_t, uint64_t]] under_way
    cdef uint64_t wire_bytes  # of the batches
    cdef int64_t busy_ns
    cdef Tracer* tracer

    def __init__(self, SendOrder order, uint32_t graph, links, *, uint32_t window_bytes,
                 int64_t gather_microseconds, cbool traces, cbool for_graphs):
        cdef Sender sender
        self.keep = list(links)
        self.order, self.graph = order, graph
        self.queue = &RecordQueue.of(graph)
        for link in links:
            self.links.push_back(
                <ControllerLink*>PyCapsule_GetPointer(link, "dtorch.ControllerLink"))
        self.window_words = window_bytes // 4
        self.gather_records = 256
        self.gather_microseconds = gather_microseconds
        # How long what should go together may wait for the rest, while workers have nothing to
        # do. About as long as they take to issue the operators that a graph would spare them.
        self.hold_microseconds = 2000 if for_graphs else 200
        # Before the thread runs: a client that flushes may send the first batches itself.
        self.sent_bytes = self.queue.bytes_executed()
        sender.self, sender.send, sender.reach = <void*>self, send_batch, reach_records
        self.tracer = new Tracer(sender, self.queue[0], traces, for_graphs)
        order.add(graph, <void*>self)

    def __dealloc__(self):
        del self.tracer

    def leave(self):
        """There is nothing more to send: no other graph looks at this one from now on."""
        self.order.add(self.graph, NULL)

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
            self.order.sending.lock()
            self.tracer.timeline().start(room)
            self.order.sending.unlock()

    def take_timeline(self):
        """(events as bytes, how many were lost) since begin_timeline(); ends and forgets them."""
        cdef Timeline* timeline = &self.tracer.timeline()
        with nogil:
            self.order.sending.lock()
            timeline.stop()
            self.order.sending.unlock()
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
        """(number, records as bytes) of a window that became a plan, or None after that time."""
        cdef NewPlan plan
        cdef cbool found = False
        with nogil:
            while not found and microseconds > 0 and not self.stopping:
                self.order.sending.lock()
                found = self.tracer.take_new_plan(&plan)
                self.order.sending.unlock()
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
            self.order.sending.lock()
            self.tracer.rewrite(rewrite)
            self.order.sending.unlock()

    def flush(self):
        """Send what there is, at once and on the calling thread: it waits for a value.

        One hop to another thread less than waking the controller's own.
        """
        with nogil:
            self.send_all(False)

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
        cdef RecordQueue* queue = self.queue
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
                    queue.wait(self.hold_microseconds)
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
            self.send_all(not flush)

    cdef void send_all(self, cbool may_hold) noexcept nogil:
        self.order.sending.lock()
        cdef int64_t began = steady_ns()
        self.take_up_to(<uint64_t>-1)
        if not may_hold:
            self.tracer.release()
        self.busy_ns += steady_ns() - began
        self.order.sending.unlock()

    cdef void take_up_to(self, uint64_t records) noexcept nogil:
        cdef Batch batch
        while self.queue.take(self.window_words, records, &batch):
            self.tracer.take(batch, self.are_fed())

    # `sending` is held, by whoever sends another graph's records.
    cdef void send_up_to(self, uint64_t records) noexcept nogil:
        if self.sent_records < records:
            self.take_up_to(records)
        if self.sent_records < records:
            self.tracer.release()

    # Whether workers have more to do when they are through with the batch at hand.
    cdef cbool are_fed(self) noexcept nogil:
        return (self.under_way.size() > 1
                and self.sent_records - self.under_way.front().first >= self.gather_records)

    cdef void feed(self) noexcept nogil:
        self.order.sending.lock()
        if not self.are_fed():
            self.tracer.feed()
        self.order.sending.unlock()

    cdef void release(self) noexcept nogil:
        self.order.sending.lock()
        cdef int64_t began = steady_ns()
        self.tracer.release()
        self.busy_ns += steady_ns() - began
        self.order.sending.unlock()

    # program_bytes: of the records that the batch stands for.
    cdef void send(self, const Batch* batch, uint64_t program_bytes,
                   cbool communicates) noexcept nogil:
        cdef Batch numbered
        if communicates and self.order.has_several:
            numbered = with_turn(batch[0], self.order.next_turn)
            self.order.next_turn += 1
            batch = &numbered
        # Data first: a worker that meets the record may then wait for it.
        cdef cbool noted = self.tracer.timeline().is_on()
        cdef int64_t began = steady_ns() if noted else 0
        cdef vector[Transfer] transfers = self.queue.transfers.take()
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
        self.order.sending.lock()
        self.update_progress(queue)
        self.order.sending.unlock()

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
