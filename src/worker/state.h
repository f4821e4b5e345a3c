// What a worker holds: slots, operators, shardings, failures.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "sharding/table.h"
#include "transport/link.h"
#include "wire/flight.h"
#include "wire/reader.h"

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
  };
  at::Tensor tensor;
  FailurePtr failure;
  uint32_t sharding = 0;
  State state = State::kEmpty;
};

struct WorkerState {
  WorkerState(int worker, c10::Device device, std::string host, MakeGroup make_group)
      : worker(worker), device(device), host(std::move(host)), make_group(std::move(make_group)),
        generator(at::detail::createCPUGenerator()) {}

  // The entry of a slot that may be new; the table grows in small steps, since rank 0 hands
  // numbers out densely.
  SlotEntry& slot(uint32_t number) {
    constexpr uint32_t kGrowth = 1 << 16;
    if (number >= slots.size()) {
      if (number >= slots.size() + kGrowth) Reader::fail("a slot number far beyond the table");
      slots.resize(std::max<size_t>(number + 1, slots.size() * 2));
    }
    return slots[number];
  }
  SlotEntry& known_slot(uint32_t number) {
    if (number >= slots.size() || slots[number].state == SlotEntry::State::kEmpty) {
      Reader::fail("a slot that holds nothing");
    }
    return slots[number];
  }
  const c10::OperatorHandle& op(uint32_t number) const {
    if (number >= operators.size() || !operators[number]) Reader::fail("an operator that was not defined");
    return *operators[number];
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
  const c10::Device device;
  const std::string host;
  const MakeGroup make_group;
  at::Generator generator;  // reseeded by each record that draws

  std::vector<SlotEntry> slots;
  std::vector<std::optional<c10::OperatorHandle>> operators;
  std::unordered_map<uint32_t, MeshMember> members;  // by mesh, where this worker is part
  Stack stack;

  bool notes_flight = false;  // writes this process's flight record
  uint64_t record = 0;  // being executed
  uint32_t site = 0;
  uint64_t num_operators = 0;
  bool stopped = false;

  // Failures that no reply has told of yet, oldest first.
  std::vector<FailurePtr> unreported;
  // Memory that a failed in-place operator should have written.
  std::unordered_map<const c10::StorageImpl*, std::pair<c10::Storage, FailurePtr>> spoiled;
};

}  // namespace dtorch
