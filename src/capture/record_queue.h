// The queue of a graph's records between the client's threads and the graph's controller thread.
//
// Records are written once, into chunks; the controller hands parts of a chunk on as
// batches without copying. Any thread may produce (tensors are freed by whichever thread
// drops them), under one short lock, which all graphs share, so that there is an order among what
// they do; one thread consumes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "capture/slot_numbers.h"
#include "capture/transfers.h"
#include "wire/record.h"
#include "wire/writer.h"

namespace dtorch {

// Memory that records lie in; freed with its last batch.
struct Chunk {
  std::atomic<uint32_t> references{1};
  uint32_t capacity;  // words
  // Words published (low half) and records published (high half), read by the consumer.
  std::atomic<uint64_t> published{0};
  std::atomic<Chunk*> next{nullptr};

  uint32_t* words() { return reinterpret_cast<uint32_t*>(this + 1); }
  static Chunk* create(uint32_t capacity);
  void retain() { references.fetch_add(1, std::memory_order_relaxed); }
  void release();
};

// A run of whole records inside one chunk.
class Batch {
 public:
  Batch() = default;
  Batch(Chunk* chunk, const uint32_t* begin, const uint32_t* end, uint64_t first_record,
        uint32_t records)
      : begin(begin), end(end), first_record(first_record), records(records), chunk_(chunk) {
    chunk->retain();
  }
  Batch(const Batch& other) { *this = other; }
  Batch(Batch&& other) noexcept { *this = std::move(other); }
  Batch& operator=(const Batch& other) {
    if (other.chunk_) other.chunk_->retain();
    if (chunk_) chunk_->release();
    begin = other.begin, end = other.end, first_record = other.first_record;
    records = other.records, chunk_ = other.chunk_;
    return *this;
  }
  Batch& operator=(Batch&& other) noexcept {
    begin = other.begin, end = other.end, first_record = other.first_record;
    records = other.records;
    std::swap(chunk_, other.chunk_);
    return *this;
  }
  ~Batch() {
    if (chunk_) chunk_->release();
  }
  // The records from `from` up to `to`, of which the first is number `first`.
  Batch part(const uint32_t* from, const uint32_t* to, uint64_t first, uint32_t count) const {
    return Batch(chunk_, from, to, first, count);
  }
  size_t bytes() const { return static_cast<size_t>(end - begin) * 4; }

  const uint32_t* begin = nullptr;
  const uint32_t* end = nullptr;
  uint64_t first_record = 0;  // number of the first record in the program's order
  uint32_t records = 0;

 private:
  Chunk* chunk_ = nullptr;
};

class SpinLock {
 public:
  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) wait();
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  void wait();
  std::atomic<bool> held_{false};
};

class RecordQueue {
 public:
  // Of the graph that a program has without asking for one.
  static RecordQueue& main();
  // Of the graph that this thread's operators go to.
  static RecordQueue& current();
  static void set_current(RecordQueue& queue);
  // Of a graph by its number; made at first need.
  static RecordQueue& of(uint32_t graph);

  const uint32_t graph;

  // ---- producers: hold `lock` from reserve to commit -------------------------------------
  static SpinLock lock;

  // Room for one record of at most `words`.
  Writer reserve(size_t words);
  // Publishes the record that `writer` has ended.
  void commit(uint32_t words);
  uint32_t take_slot();
  void free_slot_locked(uint32_t slot);
  // Waits, without the lock, while too much is under way; called before capturing.
  void throttle() {
    if (issued_.load(std::memory_order_relaxed) - executed_.load(std::memory_order_relaxed) >
            max_records ||
        bytes_issued_.load(std::memory_order_relaxed) -
                bytes_executed_.load(std::memory_order_relaxed) > max_bytes) {
      wait_for_room();
    }
  }
  // A slot that no tensor of the program ever has, for the controller; kNoSlot: all are taken.
  uint32_t reserve_slot();
  // Of the generation of workers that know it; those of earlier ones are gone.
  void free_slot(uint32_t slot, uint32_t generation);
  // Counts data that travels beside the records; hold `lock`.
  void add_bytes(uint64_t bytes) {
    bytes_issued_.store(bytes_issued_.load(std::memory_order_relaxed) + bytes,
                        std::memory_order_relaxed);
  }
  // Makes the controller send what there is, at once: somebody waits for a value.
  void flush();
  // Stops taking records: after shutdown and in forked children.
  void close() { open_.store(false); }
  // Workers that know no operator, site or slot of any before. Nothing that was issued to those
  // is left.
  void open();
  // Of these workers: other than that of every queue before.
  uint32_t generation() const { return generation_.load(std::memory_order_relaxed); }
  // Raises for a slot of workers that were shut down.
  void check_alive(uint32_t generation) const;
  bool is_open() const { return open_.load(std::memory_order_relaxed); }
  void forget_after_fork();

  // ---- the consumer -----------------------------------------------------------------------
  // The next batch of at most `max_words` (one record is never split) and of no records from number
  // `end` on, or false.
  bool take(uint32_t max_words, uint64_t end, Batch* batch);
  uint64_t pending_records() const { return issued() - taken_records_; }
  bool flush_wanted() const { return flush_wanted_.load(std::memory_order_acquire); }
  void flush_done() { flush_wanted_.store(false, std::memory_order_release); }
  // Sleeps until records or a flush may have come, `microseconds` at most.
  void wait(int64_t microseconds);
  void set_executed(uint64_t records, uint64_t bytes) {
    bytes_executed_.store(bytes, std::memory_order_relaxed);
    executed_.store(records, std::memory_order_release);
  }

  uint64_t issued() const { return issued_.load(std::memory_order_acquire); }
  uint64_t executed() const { return executed_.load(std::memory_order_acquire); }
  uint64_t bytes_issued() const { return bytes_issued_.load(std::memory_order_acquire); }
  uint64_t bytes_executed() const { return bytes_executed_.load(std::memory_order_acquire); }
  uint64_t live_slots() const { return slots_.num_taken(); }

  // The bounds of run-ahead.
  uint64_t max_records = 100'000;
  uint64_t max_bytes = 256u << 20;
  std::function<void()> while_waiting;  // raises if the wait has become pointless

  Transfers transfers;
  size_t num_definitions = 0;  // of definitions.h, that its workers have been told
  size_t num_imports = 0;      // slots that hold other graphs' tensors

 private:
  explicit RecordQueue(uint32_t graph);
  void wait_for_room();
  void wake();

  Chunk* tail_;           // producers write here
  uint32_t tail_words_ = 0;
  uint32_t tail_records_ = 0;
  SlotNumbers slots_;
  std::atomic<uint32_t> generation_{0};
  std::atomic<bool> open_{false};

  alignas(64) std::atomic<uint64_t> issued_{0};
  std::atomic<uint64_t> bytes_issued_{0};
  alignas(64) std::atomic<uint64_t> executed_{0};
  std::atomic<uint64_t> bytes_executed_{0};

  alignas(64) Chunk* head_;  // the consumer reads here
  uint32_t head_words_ = 0;
  uint32_t head_records_ = 0;
  uint64_t taken_records_ = 0;

  std::atomic<bool> flush_wanted_{false};
  std::atomic<bool> asleep_{false};
  std::mutex sleep_mutex_;
  std::condition_variable sleep_;
};

}  // namespace dtorch
