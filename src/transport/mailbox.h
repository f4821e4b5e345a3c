// Where replies arrive on rank 0: one entry a promise, one part a worker that answers.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "transport/link.h"

namespace dtorch {

struct PendingReply {
  explicit PendingReply(size_t num_parts) : parts(num_parts), left(static_cast<int>(num_parts)) {}
  std::vector<Reply> parts;  // by worker
  std::atomic<int> left;
};

class Mailbox {
 public:
  static Mailbox& get() {
    static auto* mailbox = new Mailbox;  // worker threads may outlive every static
    return *mailbox;
  }

  std::shared_ptr<PendingReply> expect(uint32_t id, size_t num_parts) {
    auto pending = std::make_shared<PendingReply>(num_parts);
    std::lock_guard<std::mutex> guard(mutex_);
    pending_[id] = pending;
    return pending;
  }
  // Puts worker `part`'s answer in; the last one makes the future ready.
  void put(uint32_t id, size_t part, const Reply& reply) {
    std::shared_ptr<PendingReply> pending;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      auto found = pending_.find(id);
      if (found == pending_.end() || part >= found->second->parts.size()) return;
      pending = found->second;
    }
    pending->parts[part] = reply;
    pending->left.fetch_sub(1, std::memory_order_acq_rel);
  }
  void forget(uint32_t id) {
    std::lock_guard<std::mutex> guard(mutex_);
    pending_.erase(id);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<uint32_t, std::shared_ptr<PendingReply>> pending_;
};

}  // namespace dtorch
