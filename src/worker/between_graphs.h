// What the graphs of one worker have in common, each of which runs in a thread of its own.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "device/streams.h"
#include "sharding/redistribute.h"
#include "transport/backoff.h"
#include "transport/link.h"
#include "wire/reader.h"
#include "wire/record.h"
#include "worker/device_collectives.h"

namespace dtorch {

// A tensor on its way from one graph to another.
struct HandedOver {
  at::Tensor tensor;
  FailurePtr failure;
  uint32_t sharding = 0;
  bool is_absent = false;
};

// Memory that a failed in-place operator should have written, or (no failure) that was written
// over since.
struct Spoiling {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  FailurePtr failure;
};

// One worker's collectives in the order that the controller gives them, whichever graph they are
// of. A batch with collectives has a turn; the first of them waits until all batches with earlier
// turns are through. All workers so begin the same collectives in the same order.
class Turns {
 public:
  bool has_come(uint32_t turn) {
    std::lock_guard<std::mutex> guard(mutex_);
    return next_ == turn;
  }
  // The batch with this turn will begin no more collectives.
  void pass(uint32_t turn) {
    std::lock_guard<std::mutex> guard(mutex_);
    passed_.insert(turn);
    while (passed_.erase(next_) > 0) ++next_;
  }

 private:
  std::mutex mutex_;
  uint32_t next_ = 0;
  std::set<uint32_t> passed_;
};

class WorkerGraphs {
 public:
  // ---- how far each graph is ---------------------------------------------------------------------
  void set_executed(uint32_t graph, uint64_t records) {
    executed_[graph].store(records, std::memory_order_release);
  }
  // begun: which of the graphs of that number, which come one after the other, is meant; one ends
  // when all its records are executed, and whoever waits for it may be late.
  bool has_executed(uint32_t graph, uint32_t begun, uint64_t records) const {
    const uint32_t now = begun_[graph].load(std::memory_order_acquire);
    return now > begun || (now == begun && executed_[graph].load(std::memory_order_acquire) >= records);
  }

  // Has a graph's stream wait for what another one of that number has issued so far. What was executed
  // is known by then to be issued.
  void order(const DeviceStreams& later, uint32_t graph) {
    if (!later.exist()) return;
    std::lock_guard<std::mutex> guard(mutex_);
    if (compute_[graph]) DeviceStreams::order(later.compute(), *compute_[graph]);
  }

  // ---- tensors on their way ----------------------------------------------------------------------
  void hand_over(uint64_t ticket, HandedOver tensor) {
    std::lock_guard<std::mutex> guard(mutex_);
    handed_over_.emplace(ticket, std::move(tensor));
  }
  std::optional<HandedOver> take(uint64_t ticket) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = handed_over_.extract(ticket);
    if (found.empty()) return std::nullopt;
    return std::move(found.mapped());
  }

  // ---- memory that lost its value, so that graphs which share it know -------------------------------
  void note_spoiling(Spoiling spoiling) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (num_graphs_ == 1) return;
    spoilings_.push_back(std::move(spoiling));
    num_spoilings_.store(spoilings_.size(), std::memory_order_release);
  }
  size_t num_spoilings() const { return num_spoilings_.load(std::memory_order_acquire); }
  // Those since the last call, by how many the caller had seen.
  std::vector<Spoiling> spoilings_since(size_t* seen) {
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<Spoiling> found(spoilings_.begin() + static_cast<ptrdiff_t>(*seen), spoilings_.end());
    *seen = spoilings_.size();
    return found;
  }

  // ---- collectives ---------------------------------------------------------------------------------
  DeviceCollectives collectives;

  // ---- groups, which all graphs use ----------------------------------------------------------------
  // Meshes by number, with this worker's place in each that has one. Graphs learn of meshes in one
  // order, so whoever comes first makes the groups, and they are those of the same mesh elsewhere.
  struct KnownMesh {
    std::shared_ptr<const Mesh> mesh;
    std::optional<MeshMember> member;
  };
  std::mutex meshes_mutex;
  std::unordered_map<uint32_t, KnownMesh> meshes;
  c10::intrusive_ptr<c10d::Backend> everybody;  // all workers of the job
  uint64_t num_transfers = 0;                   // between meshes; of whoever's turn it is

  Turns turns;

  // A graph begins: its records are counted anew.
  void add(uint32_t graph, const DeviceStreams& streams) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (graph >= kMaxGraphs) Reader::fail("a graph number beyond the last");
    ++num_graphs_;
    if (streams.exist()) compute_[graph] = streams.compute();
    executed_[graph].store(0, std::memory_order_relaxed);
    begun_[graph].fetch_add(1, std::memory_order_release);
  }

 private:
  std::array<std::atomic<uint64_t>, kMaxGraphs> executed_{};
  std::array<std::atomic<uint32_t>, kMaxGraphs> begun_{};
  std::mutex mutex_;
  size_t num_graphs_ = 0;  // that there were so far
  std::array<std::optional<c10::Stream>, kMaxGraphs> compute_;  // by graph, on an accelerator
  std::unordered_map<uint64_t, HandedOver> handed_over_;
  std::vector<Spoiling> spoilings_;
  std::atomic<size_t> num_spoilings_{0};
};

}  // namespace dtorch
