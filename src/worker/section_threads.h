// Sections of plans on the CPU: its streams are threads, which run independent branches beside each other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "capture/capture.h"
#include "capture/resize_warnings.h"
#include "worker/section_run.h"

namespace dtorch {

class StreamThreads {
 public:
  ~StreamThreads() {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  // Runs work(0) here and work(1) to work(count - 1) in threads of their own, all at once.
  void run(uint32_t count, const std::function<void(uint32_t)>& work) {
    while (threads_.size() + 1 < count) {
      threads_.emplace_back([this, stream = static_cast<uint32_t>(threads_.size() + 1),
                             operator_threads = at::get_num_threads()] {
        loop(stream, operator_threads);
      });
    }
    {
      std::lock_guard<std::mutex> guard(mutex_);
      work_ = &work;
      count_ = count;
      left_.store(count - 1, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
    }
    changed_.notify_all();
    work(0);
    while (left_.load(std::memory_order_acquire) > 0) sched_yield();
  }

 private:
  static constexpr int kSpins = 200;

  void loop(uint32_t stream, int operator_threads) {
    set_executes_records(true);
    at::set_num_threads(operator_threads);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    SilentResizing silent;
    for (uint64_t seen = 0;;) {
      for (int i = 0; i < kSpins && round_.load(std::memory_order_acquire) == seen; ++i) sched_yield();
      std::unique_lock<std::mutex> guard(mutex_);
      changed_.wait(guard, [&] { return is_over_ || round_.load(std::memory_order_relaxed) != seen; });
      if (is_over_) return;
      seen = round_.load(std::memory_order_relaxed);
      const auto* work = stream < count_ ? work_ : nullptr;
      guard.unlock();
      if (work == nullptr) continue;
      (*work)(stream);
      left_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(uint32_t)>* work_ = nullptr;
  uint32_t count_ = 0;
  bool is_over_ = false;
  std::atomic<uint64_t> round_{0};
  std::atomic<uint32_t> left_{0};
  std::vector<std::thread> threads_;
};

class ThreadedSectionRun : public SectionRun {
 public:
  ThreadedSectionRun(WorkerState& state, WorkerPlan& plan, const Section& section)
      : SectionRun(state, plan, section), events_(section.operators.size()) {}

  void run() {
    if (!state_.stream_threads) state_.stream_threads = std::make_shared<StreamThreads>();
    std::vector<Stream> streams;
    for (uint32_t number = 0; number < section_.num_streams; ++number) streams.push_back(new_stream());
    state_.stream_threads->run(section_.num_streams,
                               [&](uint32_t number) { run_stream(number, &streams[number]); });
    end(streams);
  }

  // Whether a record has run. One that failed has not, nor has what depends on it.
  bool has_run(uint32_t i) const { return events_[i].load(std::memory_order_relaxed) == kRecorded; }

 private:
  enum : uint8_t { kNotYet, kRecorded, kLeftOut };

  // Behind a record that is left out a stream leaves all out: any of them may need it.
  void run_stream(uint32_t number, Stream* stream) {
    bool can_run = true;
    for (uint32_t i = 0; i < section_.operators.size(); ++i) {
      const auto& assigned = section_.operators[i];
      if (assigned.stream != number) continue;
      for (uint32_t other : assigned.waits) can_run = can_run && wait(other);
      can_run = can_run && run_one(i, stream);
      events_[i].store(can_run ? kRecorded : kLeftOut, std::memory_order_release);
      stream->stack.clear();
    }
  }

  bool wait(uint32_t other) {
    uint8_t event;
    while ((event = events_[other].load(std::memory_order_acquire)) == kNotYet) sched_yield();
    return event == kRecorded;
  }

  std::vector<std::atomic<uint8_t>> events_;  // one a record
};

}  // namespace dtorch
