// Data too large for a record: it waits here until the controller has sent it, or until
// the worker threads of this process have taken their parts.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace dtorch {

constexpr int64_t kMaxDims = 128;  // of a tensor that travels; LibTorch refuses more than 64 itself

struct Transfer {
  uint64_t number = 0;
  at::Tensor tensor;
  uint32_t sharding = 0;
};

// Of one graph.
class Transfers {
 public:
  uint64_t add(at::Tensor tensor, uint32_t sharding) {
    std::lock_guard<std::mutex> guard(mutex_);
    waiting_.push_back({next_, std::move(tensor), sharding});
    return next_++;
  }
  // What has come since the last call; the controller hands it to every link.
  std::vector<Transfer> take() {
    std::lock_guard<std::mutex> guard(mutex_);
    return std::exchange(waiting_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<Transfer> waiting_;
  uint64_t next_ = 0;
};

}  // namespace dtorch
