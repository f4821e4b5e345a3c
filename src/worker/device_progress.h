// How far a device has come with what a worker has issued to it.
//
// Rank 0 bounds its run-ahead by what is executed, and takes memory that graphs share for idle by it. So
// issuing is not enough to be told of.
#pragma once

#include <deque>
#include <utility>

#include "worker/state.h"

namespace dtorch {

class DeviceProgress {
 public:
  // All records before `records` are issued.
  void note(const DeviceStreams& streams, uint64_t records) {
    issued_.emplace_back(DeviceStreams::mark(streams.compute()), records);
  }
  bool is_empty() const { return issued_.empty(); }
  // Whether the device has come further; all records before *records are executed then.
  bool advance(uint64_t* records) {
    bool has_advanced = false;
    while (!issued_.empty() && has_ended(issued_.front().first)) {
      *records = issued_.front().second;
      issued_.pop_front();
      has_advanced = true;
    }
    return has_advanced;
  }

 private:
  // A device that fails does no more; whoever reads a value is told.
  static bool has_ended(const c10::Event& event) {
    try {
      return event.query();
    } catch (const std::exception&) {
      return true;
    }
  }

  std::deque<std::pair<c10::Event, uint64_t>> issued_;
};

// Behind the last record: until all answers are on their way.
inline void finish_handover(const WorkerState& state) {
  constexpr int kSpins = 200;
  Backoff backoff(kSpins);
  while (state.handover && !state.handover->is_empty()) backoff.pause();
}

}  // namespace dtorch
