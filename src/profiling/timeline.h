// What a stage did, and when: events in a ring that is allocated before the first one.
//
// Names, shapes and lines stay out of an event. They are looked up on rank 0 when the profile has
// ended, so noting one costs two readings of the clock and a copy.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dtorch {

// As dtorch_mpi/profiler.py unpacks it.
struct Event {
  static constexpr uint16_t kReplayed = 1;  // part of a plan that workers hold
  static constexpr uint16_t kFailed = 2;
  static constexpr uint16_t kRewritten = 4;  // in a region that a pass has changed
  static constexpr uint32_t kNoDtype = 0xff;

  int64_t begin = 0, end = 0;  // nanoseconds of steady_clock
  uint64_t record = 0;         // its number among the program's
  uint16_t kind = 0;           // Kind of wire/record.h, or ControllerEvent
  uint16_t flags = 0;
  uint32_t number = 0;         // operator, plan, or the sharding before a redistribution
  uint32_t site = 0;
  uint32_t detail = 0;         // call, hash of a kernel's name, or the sharding after
  uint32_t thread = 0;         // of the client's
  uint32_t dtype = kNoDtype;   // of the tensor whose sizes are the amounts
  int64_t amounts[5] = {-1, -1, -1, -1, -1};
};
static_assert(sizeof(Event) == 88);

enum class ControllerEvent : uint16_t {
  kBatch = 0x100,  // record: its first; amounts: records, bytes
  kWindow,         // record: its last; amounts: records
  kReplay,         // of a whole window: the same; number: plan
  kDeparture,      // amounts: records that had followed the plan; number: plan
  kNewPlan,        // amounts: records; number: plan
};

inline int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One thread at a time may use it, but for is_on().
class Timeline {
 public:
  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  // From now on the last `room.size()` events are kept.
  void start(std::vector<Event> room) {
    events_ = std::move(room);
    noted_ = 0;
    started_ = steady_ns();
    on_.store(!events_.empty(), std::memory_order_relaxed);
  }
  void stop() { on_.store(false, std::memory_order_relaxed); }
  void clear() {
    stop();
    events_ = {};
    noted_ = 0;
  }
  void note(const Event& event) {
    if (!is_on()) return;  // what was begun before the end
    Event& place = events_[noted_++ % events_.size()];
    place = event;
    // What began before the profile is shown from its beginning.
    place.begin = std::max(place.begin, started_);
  }

  uint64_t noted() const { return noted_; }
  size_t size() const { return std::min<uint64_t>(noted_, events_.size()); }
  uint64_t lost() const { return noted_ - size(); }
  // `count` events from the `first` oldest on, as far as there are as many.
  std::string bytes(size_t first, size_t count) const {
    std::string bytes;
    const size_t last = std::min(size(), first + std::min(count, size()));
    for (size_t i = first; i < last; ++i) {
      bytes.append(reinterpret_cast<const char*>(&events_[(lost() + i) % events_.size()]), sizeof(Event));
    }
    return bytes;
  }

 private:
  std::atomic<bool> on_{false};
  std::vector<Event> events_;
  uint64_t noted_ = 0;
  int64_t started_ = 0;
};

}  // namespace dtorch
