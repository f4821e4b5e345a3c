// What one thread of a worker is at, for a watchdog that looks on.
//
// It lies in the flight record, where another process reads it, or in the worker's own memory. The
// worker's thread writes it; dtorch_mpi/watching/flight_record.py reads it, and a test compares the two.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

namespace dtorch {

struct Activity {
  // For whom it waits before it can go on with its record.
  enum Wait : uint32_t {
    kNobody = 0,
    kOthers = 1,      // other workers, in a collective
    kOtherGraph = 2,  // another graph of this worker
    kRank0 = 3,       // data on their way from rank 0
  };

  uint64_t count = 0;  // records begun; it stands still where the thread does
  uint32_t is_used = 0;
  uint32_t graph = 0;
  uint32_t thread = 0;  // the kernel's number of it
  uint32_t kind = 0;    // of the record (wire/record.h); 0: it waits for records
  uint32_t number = 0;  // its second word: of an operator, say
  uint32_t site = 0;
  uint32_t wait = kNobody;
  uint32_t wait_site = 0;  // of what it waits for
  char kernel[64] = {};    // the last Python kernel's name
  char unused[24] = {};

  // Which thread it is about.
  void bind() noexcept { set(thread, static_cast<uint32_t>(syscall(SYS_gettid))); }

  void begin(uint32_t new_kind, uint32_t new_number, uint32_t new_site) noexcept {
    set(kind, new_kind);
    set(number, new_number);
    set(site, new_site);
    step();
  }
  // It goes on within its record.
  void step() noexcept { set(count, get(count) + 1); }
  void rest() noexcept { set(kind, uint32_t{0}); }

  void name_kernel(std::string_view name) noexcept {
    const size_t size = std::min(name.size(), sizeof(kernel) - 1);
    std::memcpy(kernel, name.data(), size);
    std::memset(kernel + size, 0, sizeof(kernel) - size);
  }

  template <typename T>
  static void set(T& place, T value) noexcept {
    std::atomic_ref<T>(place).store(value, std::memory_order_relaxed);
  }
  template <typename T>
  static T get(T& place) noexcept {
    return std::atomic_ref<T>(place).load(std::memory_order_relaxed);
  }
};
static_assert(sizeof(Activity) == 128);

// While it lives, the thread waits for somebody.
class WaitNote {
 public:
  WaitNote(Activity& activity, Activity::Wait wait, uint32_t site) noexcept
      : activity_(activity), wait_(activity.wait), site_(activity.wait_site) {
    note(wait, site);
  }
  ~WaitNote() { note(wait_, site_); }
  WaitNote(const WaitNote&) = delete;
  WaitNote& operator=(const WaitNote&) = delete;

 private:
  void note(uint32_t wait, uint32_t site) noexcept {
    Activity::set(activity_.wait, wait);
    Activity::set(activity_.wait_site, site);
  }

  Activity& activity_;
  const uint32_t wait_, site_;
};

}  // namespace dtorch
