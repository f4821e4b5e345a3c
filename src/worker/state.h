// What a worker holds: slots, operators, shardings, failures.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "device/streams.h"
#include "profiling/timeline.h"
#include "random/part.h"
#include "sharding/table.h"
#include "transport/link.h"
#include "wire/flight.h"
#include "wire/reader.h"
#include "worker/between_graphs.h"
#include "worker/captured_part.h"
#include "worker/handover.h"
#include "worker/unchecked.h"
#include "worker/users_operator.h"

namespace dtorch {

using Stack = std::vector<c10::IValue>;
using MakeGroup = std::function<c10::intrusive_ptr<c10d::Backend>(
    const std::vector<int32_t>& workers, int rank)>;

struct SlotEntry {
  enum class State : uint8_t {
    kEmpty,
    kTensor,
    kFailed,   // the operator that should have made it failed, or one that it depends on
    kAbsent,   // this worker is not part of the tensor's mesh
    kPending,  // what collects it goes on: WorkerState::settle() waits for it
  };
  at::Tensor tensor;
  FailurePtr failure;
  uint64_t maker = 0;  // which of the records that ran
  uint32_t sharding = 0;
  State state = State::kEmpty;
  bool is_import = false;  // another graph's tensor
};

// What a redistribution that goes on will put into a slot.
struct PendingValue {
  PendingTensor tensor;
  FailurePtr failure;  // there will be no value: this part only served the other workers
  Sizes strides;       // global ones
  uint32_t sharding = 0;
  uint32_t site = 0;
  uint64_t record = 0;
  bool is_watched = false;
  Event event;         // its begin is 0 where the timeline is off
  std::shared_ptr<std::atomic<int64_t>> ended;  // when the collective ended, once it is watched
};

struct WorkerOperator {
  std::optional<c10::OperatorHandle> handle;
  std::string name;  // as the program knows it
  bool draws_by_place = false;  // a kernel of src/random: it needs no CPU generator's state
  bool writes_over = false;     // its first argument, all of it, whatever that held
  UncheckedArguments unchecked;
  std::shared_ptr<UsersOperator> users;  // null for one of PyTorch's or ours
};

struct WorkerPlan;     // worker/plan.h
class StreamThreads;   // worker/streams.h

// Of one graph of a worker.
struct WorkerState {
  // graphs: of this worker, `graph` being this one's number.
  WorkerState(int worker, int num_workers, const std::string& device, std::string host,
              MakeGroup make_group, std::shared_ptr<WorkerGraphs> graphs, uint32_t graph)
      : worker(worker), num_workers(num_workers), device(device), host(std::move(host)),
        make_group(std::move(make_group)), graphs(std::move(graphs)), graph(graph),
        streams(this->device, graph == 0), generator(new_worker_generator()) {
    this->graphs->add(graph, streams);
  }
  ~WorkerState() {
    if (activity != &own_activity) flight_record().give_back(activity);
  }
  WorkerState(const WorkerState&) = delete;
  WorkerState& operator=(const WorkerState&) = delete;

  // Has this graph write the process's flight record.
  void note_flight() {
    notes_flight = true;
    if (Activity* shared = flight_record().take_activity(graph)) activity = shared;
  }

  // The entry of a slot that may be new; the table grows in small steps, since rank 0 hands
  // numbers out densely.
  SlotEntry& slot(uint32_t number) {
    constexpr uint32_t kGrowth = 1 << 16;
    if (number >= slots.size()) {
      if (number >= kMaxSlots) Reader::fail("a slot number beyond the last");
      if (number >= slots.size() + kGrowth) Reader::fail("a slot number far beyond the table");
      slots.resize(std::clamp<size_t>(slots.size() * 2, number + 1, kMaxSlots));
    }
    if (C10_UNLIKELY(slots[number].state == SlotEntry::State::kPending)) settle(number);
    return slots[number];
  }
  SlotEntry& known_slot(uint32_t number) {
    if (number >= slots.size() || slots[number].state == SlotEntry::State::kEmpty) {
      Reader::fail(("slot " + std::to_string(number) + ", which holds nothing").c_str());
    }
    if (C10_UNLIKELY(slots[number].state == SlotEntry::State::kPending)) settle(number);
    return slots[number];
  }
  // Waits for a slot's value. worker/pending.h
  void settle(uint32_t number);
  const WorkerOperator& op(uint32_t number) const {
    if (number >= operators.size() || !operators[number].handle) {
      Reader::fail("an operator that was not defined");
    }
    return operators[number];
  }
  // Empty for one that was not defined.
  std::string operator_name(uint32_t number) const {
    return number < operators.size() ? operators[number].name : std::string();
  }
  // Defined on rank 0, and not registered here.
  bool is_missing(uint32_t number) const {
    return number < operators.size() && !operators[number].handle && !operators[number].name.empty();
  }
  std::shared_ptr<const Sharding> sharding(uint32_t number) const {
    auto found = ShardingTable::get().sharding(number);
    if (found == nullptr) Reader::fail("a sharding that was not defined");
    return found;
  }
  const MeshMember* member(const Mesh& mesh) const {
    auto found = members.find(mesh.id);
    return found == members.end() ? nullptr : &found->second;
  }

  const int worker;
  const int num_workers;
  const c10::Device device;
  const std::string host;
  const MakeGroup make_group;
  const std::shared_ptr<WorkerGraphs> graphs;
  const uint32_t graph;
  DeviceStreams streams;
  std::optional<uint32_t> turn;  // of the batch at hand
  bool has_turn = false;         // it has come
  size_t spoilings_seen = 0;     // of those of all graphs
  bool has_others = true;        // false: nobody does what this graph might wait for
  at::Generator generator;  // a WorkerGenerator, set anew by each record that draws

  std::vector<SlotEntry> slots;
  // Of worker/between_meshes.h.
  std::vector<std::pair<c10::intrusive_ptr<c10d::Work>, at::Tensor>> sending;

  std::unordered_map<uint32_t, PendingValue> pending;  // by slot
  size_t num_unwatched = 0;                            // of them
  std::vector<WorkerOperator> operators;
  std::unordered_map<uint32_t, MeshMember> members;  // by mesh, where this worker is part
  Stack stack;
  std::vector<std::shared_ptr<WorkerPlan>> plans;  // by number

  std::shared_ptr<StreamThreads> stream_threads;  // those beside this thread, once there are any
  std::unique_ptr<Handover> handover;             // once the device owes an answer
  std::shared_ptr<GraphMaker> graph_maker;        // null: parts of plans are not captured
  bool one_stream = false;    // collectives end before the next record runs
  bool notes_flight = false;  // writes this process's flight record
  Activity own_activity;
  Activity* activity = &own_activity;  // or one in the flight record
  uint64_t record = 0;  // of the program, being executed
  uint64_t maker = 0;   // of all that were executed, those of passes too
  uint32_t site = 0;
  uint64_t num_operators = 0;
  uint64_t num_failures = 0;
  uint64_t num_graphs_captured = 0, num_graphs_replayed = 0;
  std::atomic<bool> stopped{false};  // set by a shutdown record, or by another thread
  // Why the stream can't be followed any further: what comes after is lost.
  std::string broken;

  // Failures that no reply has told of yet, oldest first; those beyond the first thousand are
  // only counted.
  std::vector<FailurePtr> unreported;
  uint64_t unlisted = 0;
  // Memory that a failed in-place operator should have written.
  std::unordered_map<const c10::StorageImpl*, Spoiling> spoiled;

  Timeline timeline;
  uint16_t flags = 0;    // of the event of the record being executed
  bool goes_on = false;  // it has an event of its own, which ends later
  int64_t resumed = 0;   // when a value had last been waited for, while the timeline is on
  // Nanoseconds so far, but for those of the batch that began at batch_began (0: none runs).
  int64_t busy = 0, idle = 0, batch_began = 0;

  void keep(const Batch& batch) {
    batches.emplace_back(reinterpret_cast<const char*>(batch.begin), batch.bytes());
  }

  // Batches as they came, for tests of the decoder.
  bool keeps_batches = false;
  std::vector<std::string> batches;
};

// Why a slot has no value, if it has none for a failure's sake.
inline FailurePtr failure_of(const WorkerState& state, const SlotEntry& entry) {
  if (entry.failure) return entry.failure;
  if (C10_LIKELY(state.spoiled.empty()) || !entry.tensor.defined() || !entry.tensor.has_storage()) {
    return nullptr;
  }
  auto found = state.spoiled.find(entry.tensor.storage().unsafeGetStorageImpl());
  return found == state.spoiled.end() ? nullptr : found->second.failure;
}

}  // namespace dtorch
