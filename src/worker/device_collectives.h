// Collectives of a worker, of all its graphs, that its device may still be at.
#pragma once

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "sharding/device_results.h"

namespace dtorch {

struct DeviceCollective {
  DeviceResult result;
  uint32_t site;    // where the program asked for it
  uint64_t record;  // and which record that is, of which graph
};

class DeviceCollectives {
 public:
  void note(const DeviceResults& results, uint32_t site, uint64_t record) {
    if (results.empty()) return;
    std::lock_guard<std::mutex> guard(mutex_);
    if (noted_.size() >= enough_) {
      forget_ended();
      enough_ = std::max(kMany, 2 * noted_.size());
    }
    for (const auto& result : results) noted_.push_back({result, site, record});
  }

  // Those that have failed too, in the order in which they began.
  std::vector<DeviceCollective> under_way() {
    std::lock_guard<std::mutex> guard(mutex_);
    forget_ended();
    return noted_;
  }

  // That a record's collective has failed, is being told. False: it was told before.
  bool tell(uint64_t record) {
    std::lock_guard<std::mutex> guard(mutex_);
    return told_.insert(record).second;
  }

 private:
  static constexpr size_t kMany = 64;

  void forget_ended() {
    std::erase_if(noted_, [](const DeviceCollective& one) { return has_succeeded(one.result); });
  }

  std::mutex mutex_;
  std::vector<DeviceCollective> noted_;
  std::unordered_set<uint64_t> told_;  // of records
  size_t enough_ = kMany;  // to look which have ended
};

}  // namespace dtorch
