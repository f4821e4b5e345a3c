// A queue of batches to one worker thread of this process, and the data beside them.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "transport/link.h"

namespace dtorch {

class BatchQueue {
 public:
  void push(const Batch& batch) {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      batches_.push_back(batch);
      size_.store(batches_.size(), std::memory_order_release);
    }
    if (asleep_.load(std::memory_order_seq_cst)) ready_.notify_one();
  }
  void push_transfer(const Transfer& transfer) {
    std::lock_guard<std::mutex> guard(mutex_);
    transfers_[transfer.number] = transfer;
  }
  bool take_transfer(uint64_t number, Transfer* transfer) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = transfers_.find(number);
    if (found == transfers_.end()) return false;
    *transfer = std::move(found->second);
    transfers_.erase(found);
    return true;
  }
  // Polls, yields, then sleeps: a value is often asked for right after its operator.
  bool pop(Batch* batch, int64_t microseconds) {
    for (int i = 0; i < spins && size_.load(std::memory_order_acquire) == 0; ++i) sched_yield();
    std::unique_lock<std::mutex> guard(mutex_);
    if (batches_.empty()) {
      asleep_.store(true, std::memory_order_seq_cst);
      ready_.wait_for(guard, std::chrono::microseconds(microseconds),
                      [&] { return !batches_.empty(); });
      asleep_.store(false, std::memory_order_relaxed);
    }
    if (batches_.empty()) return false;
    *batch = std::move(batches_.front());
    batches_.pop_front();
    size_.store(batches_.size(), std::memory_order_release);
    return true;
  }

  std::atomic<uint64_t> executed{0};
  int spins = 50;  // yields before sleeping

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Batch> batches_;
  std::unordered_map<uint64_t, Transfer> transfers_;
  std::atomic<size_t> size_{0};
  std::atomic<bool> asleep_{false};
};

}  // namespace dtorch
