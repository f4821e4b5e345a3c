// Putting values into slots, and taking them out.
#pragma once

#include <ATen/ops/empty_strided.h>

#include "worker/state.h"

namespace dtorch {

inline void put_value(WorkerState& state, uint32_t slot, const at::Tensor& value, uint32_t sharding,
                      uint64_t maker) {
  auto& entry = state.slot(slot);
  entry.tensor = value;
  entry.failure = nullptr;
  entry.maker = maker;
  entry.sharding = sharding;
  entry.state = SlotEntry::State::kTensor;
}

inline void free_slot(WorkerState& state, uint32_t number) {
  auto& entry = state.known_slot(number);
  entry.tensor = at::Tensor();
  entry.failure = nullptr;
  entry.state = SlotEntry::State::kEmpty;
  entry.is_import = false;
  if (C10_UNLIKELY(!state.spoiled.empty())) {
    // What is gone has no view left that could be read.
    std::erase_if(state.spoiled, [](const auto& item) { return item.second.storage.expired(); });
  }
}

inline void put_tensor(WorkerState& state, uint32_t number, at::Tensor tensor, uint32_t sharding) {
  auto& entry = state.slot(number);
  entry.state = tensor.defined() ? SlotEntry::State::kTensor : SlotEntry::State::kAbsent;
  entry.tensor = std::move(tensor);
  entry.failure = nullptr;
  entry.maker = state.maker;
  entry.sharding = sharding;
}

inline void put_failure(WorkerState& state, uint32_t number, const FailurePtr& failure) {
  auto& entry = state.slot(number);
  entry.state = SlotEntry::State::kFailed;
  entry.tensor = at::Tensor();
  entry.failure = failure;
}

// This worker's part with its dims in memory in the order of the global strides, which the
// client counts on: whether a view is possible, for one.
inline at::Tensor in_order(at::Tensor part, const Sizes& global_strides) {
  if (part.dim() != static_cast<int64_t>(global_strides.size())) Reader::fail("strides for another tensor");
  const auto wanted = local_strides({global_strides.data(), global_strides.size()},
                                    {part.sizes().data(), part.sizes().size()});
  if (part.numel() == 0 || part.strides() == c10::IntArrayRef(wanted)) return part;
  return at::empty_strided(part.sizes(), wanted, part.options()).copy_(part);
}

}  // namespace dtorch
