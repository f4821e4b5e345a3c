// The memory of a device, as PyTorch's allocator for its type counts it.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

namespace dtorch {

// In bytes. Peaks: since the start, or the last reset.
struct DeviceMemory {
  int64_t allocated = 0, peak_allocated = 0;  // by tensors
  int64_t active = 0, peak_active = 0;        // by those, and freed ones that some stream is not through with
  int64_t reserved = 0, peak_reserved = 0;    // all that the allocator has of the device
  int64_t retries = 0;                        // allocations for which it gave back what it kept idle
  int64_t failures = 0;                       // allocations for which there was none
};

// Null where nothing has been allocated yet, so that nothing is counted.
inline c10::DeviceAllocator* allocator_of(c10::Device device) {
  auto* allocator = c10::getDeviceAllocator(device.type());
  return allocator->initialized() ? allocator : nullptr;
}

using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;
constexpr auto kAllPools = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

inline DeviceMemory memory_of(c10::Device device) {
  auto* allocator = allocator_of(device);
  if (allocator == nullptr) return {};
  const DeviceStats stats = allocator->getDeviceStats(device.index());
  const auto &allocated = stats.allocated_bytes[kAllPools], &active = stats.active_bytes[kAllPools],
             &reserved = stats.reserved_bytes[kAllPools];
  return {allocated.current, allocated.peak,    active.current,         active.peak,
          reserved.current,  reserved.peak, stats.num_alloc_retries, stats.num_ooms};
}

// As PyTorch has them; what is not counted here is 0 there.
inline DeviceStats stats_of(const DeviceMemory& memory) {
  DeviceStats stats;
  const auto set = [](c10::CachingAllocator::StatArray& both, int64_t current, int64_t peak) {
    both[kAllPools].current = current;
    both[kAllPools].peak = peak;
  };
  set(stats.allocated_bytes, memory.allocated, memory.peak_allocated);
  set(stats.active_bytes, memory.active, memory.peak_active);
  set(stats.reserved_bytes, memory.reserved, memory.peak_reserved);
  stats.num_alloc_retries = memory.retries;
  stats.num_ooms = memory.failures;
  return stats;
}

inline void reset_peak_of(c10::Device device) {
  if (auto* allocator = allocator_of(device)) allocator->resetPeakStats(device.index());
}

// Gives back to the devices what the allocator keeps idle, of all of its type in this process.
inline void empty_cache_of(c10::Device device) {
  if (auto* allocator = allocator_of(device)) allocator->emptyCache();
}

}  // namespace dtorch
