#include "host_memory.h"

#include <c10/core/impl/alloc_cpu.h>

#include <cstring>
#include <map>

#include "checker.h"

namespace simulated_gpu {
namespace {

struct Recorded {
  uint64_t used = 0;      // time of the last copy
  uint64_t recorded = 0;  // time of the last record_event
};

struct HostBlock {
  char* data;
  size_t bytes;
  std::map<size_t, Recorded> streams;
};

void free_host_block(void* context);

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    std::lock_guard guard(mutex);
    size_t rounded = std::max<size_t>(512, (bytes + 511) / 512 * 512);
    for (auto it = free_blocks.lower_bound(rounded); it != free_blocks.end(); ++it) {
      if (it->first != rounded) break;
      HostBlock* block = it->second;
      if (!is_past(*block)) continue;
      free_blocks.erase(it);
      return hand_out(block);
    }
    return hand_out(new HostBlock{static_cast<char*>(c10::alloc_cpu(rounded)), rounded, {}});
  }

  bool record_event(void* pointer, void* context, c10::Stream stream) override {
    std::lock_guard guard(mutex);
    HostBlock* block = nullptr;
    for (auto& [address, live] : live_blocks) {
      if (live == context || address == pointer) block = live;
    }
    if (block == nullptr) return false;
    size_t index = Checker::get().index_of(stream);
    Clock clock = Checker::get().clock_of(stream);
    block->streams[index].recorded = clock[index];
    return true;
  }

  void release(HostBlock* block) {
    std::lock_guard guard(mutex);
    for (const auto& [stream, times] : block->streams) {
      if (times.used <= times.recorded) continue;
      if (Checker::get().host_has_seen(stream, times.used)) continue;
      Checker::get().violation(
          "freeing " + std::to_string(block->bytes) + " bytes of pinned memory, which a copy on " +
          Checker::get().name_of(stream) +
          " uses: record_event was not called for it, and the host has not waited for the copy");
    }
    live_blocks.erase(block->data);
    free_blocks.emplace(block->bytes, block);
  }

  HostBlock* find(const void* pointer) {
    auto* address = static_cast<const char*>(pointer);
    auto after = live_blocks.upper_bound(address);
    if (after == live_blocks.begin()) return nullptr;
    HostBlock* block = std::prev(after)->second;
    return address < block->data + block->bytes ? block : nullptr;
  }

  // Freed blocks stay: a copy that nobody waits for may still be delivered into one.
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* into, const void* from, size_t bytes) const override {
    std::memcpy(into, from, bytes);
  }

  std::recursive_mutex mutex;
  std::map<const char*, HostBlock*> live_blocks;
  std::multimap<size_t, HostBlock*> free_blocks;

 private:
  c10::DataPtr hand_out(HostBlock* block) {
    block->streams.clear();
    live_blocks[block->data] = block;
    return {block->data, block, &free_host_block, c10::Device(c10::kCPU)};
  }

  bool is_past(const HostBlock& block) {
    for (const auto& [stream, times] : block.streams) {
      if (!Checker::get().has_been_completed(stream, times.recorded)) return false;
    }
    return true;
  }
};

PinnedAllocator& allocator() {
  static auto* allocator = new PinnedAllocator();
  return *allocator;
}

void free_host_block(void* context) { allocator().release(static_cast<HostBlock*>(context)); }

}  // namespace

at::HostAllocator* host_allocator() { return &allocator(); }

std::unique_lock<std::recursive_mutex> while_copy_begins() {
  return std::unique_lock(allocator().mutex);
}

bool is_pinned(const void* pointer) {
  std::lock_guard guard(allocator().mutex);
  return allocator().find(pointer) != nullptr;
}

void use_pinned(const void* pointer, c10::Stream stream, uint64_t time) {
  std::lock_guard guard(allocator().mutex);
  if (HostBlock* block = allocator().find(pointer)) {
    block->streams[Checker::get().index_of(stream)].used = time;
  }
}

}  // namespace simulated_gpu
