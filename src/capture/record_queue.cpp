#include "capture/record_queue.h"

#include <sched.h>

#include <array>
#include <thread>

#include <Python.h>
#include <c10/util/Exception.h>

#include "profiling/client.h"

namespace dtorch {

namespace {
constexpr uint32_t kChunkWords = 16 * 1024;
}

Chunk* Chunk::create(uint32_t capacity) {
  void* memory = std::malloc(sizeof(Chunk) + size_t{capacity} * 4);
  TORCH_CHECK(memory != nullptr, "rank 0 has no memory left for ", size_t{capacity} * 4,
              " bytes of records");
  auto* chunk = new (memory) Chunk;
  chunk->capacity = capacity;
  return chunk;
}

void Chunk::release() {
  if (references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    this->~Chunk();
    std::free(this);
  }
}

void SpinLock::wait() {
  for (int i = 0; i < 64 && held_.load(std::memory_order_relaxed); ++i) __builtin_ia32_pause();
  if (held_.load(std::memory_order_relaxed)) sched_yield();
}

SpinLock RecordQueue::lock;

RecordQueue& RecordQueue::main() {
  // Never destroyed: tensors may outlive every static.
  static auto* queue = new RecordQueue(0);
  return *queue;
}

static thread_local RecordQueue* current_queue = nullptr;

RecordQueue& RecordQueue::current() {
  if (C10_UNLIKELY(current_queue == nullptr)) current_queue = &main();
  return *current_queue;
}

void RecordQueue::set_current(RecordQueue& queue) { current_queue = &queue; }

RecordQueue& RecordQueue::of(uint32_t graph) {
  if (graph == 0) return main();
  static auto* queues = new std::array<RecordQueue*, kMaxGraphs>{};
  std::lock_guard<SpinLock> guard(lock);
  auto*& queue = queues->at(graph);
  if (queue == nullptr) queue = new RecordQueue(graph);
  return *queue;
}

RecordQueue::RecordQueue(uint32_t graph) : graph(graph), tail_(Chunk::create(kChunkWords)), head_(tail_) {}

Writer RecordQueue::reserve(size_t words) {
  TORCH_CHECK(open_ || graph == 0 || !main().is_open(), "this thread is within a dtorch_mpi.Graph that "
              "is closed, or was shut down: leave its `with` block");
  TORCH_CHECK(open_, "no dtorch workers: the runtime was shut down, or this process was forked "
              "from the one that runs them (in a DataLoader worker use CPU tensors)");
  if (tail_words_ + words > tail_->capacity) {
    auto* chunk = Chunk::create(std::max<size_t>(kChunkWords, words));
    tail_->next.store(chunk, std::memory_order_release);
    tail_ = chunk;
    tail_words_ = 0;
    tail_records_ = 0;
  }
  return Writer(tail_->words() + tail_words_);
}

void RecordQueue::commit(uint32_t words) {
  if (C10_UNLIKELY(client_timeline.is_on())) {
    note_issue(tail_->words() + tail_words_, issued_.load(std::memory_order_relaxed));
  }
  tail_words_ += words;
  tail_records_ += 1;
  tail_->published.store(uint64_t{tail_records_} << 32 | tail_words_, std::memory_order_release);
  issued_.store(issued_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  bytes_issued_.store(bytes_issued_.load(std::memory_order_relaxed) + words * 4,
                      std::memory_order_relaxed);
  if (asleep_.load(std::memory_order_relaxed)) wake();
}

uint32_t RecordQueue::take_slot() {
  TORCH_CHECK(!slots_.is_full(kNoSlot), "more than ", kNoSlot, " dtorch tensors are alive at once");
  return slots_.take();
}

void RecordQueue::open() {
  static uint32_t generations = 0;
  std::lock_guard<SpinLock> guard(lock);
  generation_.store(++generations);
  slots_.clear();
  num_definitions = num_imports = 0;
  if (graph != 0) {
    // Its workers count from the beginning.
    TORCH_INTERNAL_ASSERT(pending_records() == 0);
    issued_ = executed_ = bytes_issued_ = bytes_executed_ = 0;
    taken_records_ = 0;
  }
  open_.store(true);
}

void RecordQueue::check_alive(uint32_t generation) const {
  TORCH_CHECK(generation == this->generation(), "this tensor belongs to dtorch workers that were shut down: "
              "make it again, or keep its value with .cpu() before dtorch_mpi.shutdown()");
}

uint32_t RecordQueue::reserve_slot() {
  std::lock_guard<SpinLock> guard(lock);
  return slots_.is_full(kNoSlot) ? kNoSlot : slots_.reserve();
}

void RecordQueue::free_slot(uint32_t slot, uint32_t generation) {
  if (generation != this->generation()) return;
  if (is_open()) {
    free_slot_locked(slot);
  } else {
    slots_.give_back(slot);
  }
}

void RecordQueue::free_slot_locked(uint32_t slot) {
  Writer writer = reserve(kHeaderWords);
  writer.begin(Kind::kFree, 0, slot, 0);
  commit(writer.end());
  slots_.give_back(slot);
}

void RecordQueue::wait_for_room() {
  // Whoever holds the GIL here would stop Python kernels of in-process workers.
  PyThreadState* state = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  const auto resume = [&] {
    if (state) PyEval_RestoreThread(state);
  };
  flush();
  int step = 0;
  // Half-empty before going on, so that the client is not woken for every record.
  while (issued() - executed() > max_records / 2 || bytes_issued() - bytes_executed() > max_bytes / 2) {
    if (++step < 50) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(step < 200 ? 50 : 500));
    }
    if (step % 64 == 0 && while_waiting) {
      resume();
      while_waiting();
      state = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    }
  }
  resume();
}

void RecordQueue::flush() {
  flush_wanted_.store(true, std::memory_order_seq_cst);
  wake();
}

void RecordQueue::wake() {
  std::lock_guard<std::mutex> guard(sleep_mutex_);
  asleep_.store(false, std::memory_order_relaxed);
  sleep_.notify_one();
}

void RecordQueue::wait(int64_t microseconds) {
  std::unique_lock<std::mutex> guard(sleep_mutex_);
  asleep_.store(true, std::memory_order_seq_cst);
  if (pending_records() == 0 && !flush_wanted()) {
    sleep_.wait_for(guard, std::chrono::microseconds(microseconds));
  }
  asleep_.store(false, std::memory_order_relaxed);
}

void RecordQueue::forget_after_fork() {
  // The parent's threads do not exist here and may have held any of these.
  close();
  lock.unlock();
  new (&sleep_mutex_) std::mutex;
  new (&sleep_) std::condition_variable;
}

bool RecordQueue::take(uint32_t max_words, uint64_t end, Batch* batch) {
  while (true) {
    if (taken_records_ >= end) return false;
    const uint64_t published = head_->published.load(std::memory_order_acquire);
    const uint32_t words = static_cast<uint32_t>(published);
    const uint32_t records = static_cast<uint32_t>(published >> 32);
    if (words > head_words_) {
      const uint32_t* begin = head_->words() + head_words_;
      uint32_t taken_words = words - head_words_, taken_records = records - head_records_;
      const uint64_t most = end - taken_records_;
      if (taken_words > max_words || taken_records > most) {
        const uint32_t all_words = taken_words;
        taken_words = 0, taken_records = 0;
        while (taken_records < most && taken_words < all_words &&
               (taken_records == 0 || taken_words + begin[taken_words] <= max_words)) {
          taken_words += begin[taken_words];
          ++taken_records;
        }
      }
      *batch = Batch(head_, begin, begin + taken_words, taken_records_, taken_records);
      head_words_ += taken_words;
      head_records_ += taken_records;
      taken_records_ += taken_records;
      return true;
    }
    Chunk* next = head_->next.load(std::memory_order_acquire);
    if (next == nullptr) return false;
    // The chunk may have grown between the two loads above.
    if (static_cast<uint32_t>(head_->published.load(std::memory_order_acquire)) != words) continue;
    head_->release();
    head_ = next;
    head_words_ = head_records_ = 0;
  }
}

}  // namespace dtorch
