// What failed, in words, and what has no value for it.
#pragma once

#include <sstream>

#include "capture/operator_info.h"
#include "sharding/parts.h"
#include "worker/arguments.h"
#include "worker/kernel_error.h"

namespace dtorch {

inline std::string described(const at::Tensor& tensor, uint32_t sharding) {
  if (!tensor.defined()) return "None";
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << tensor.sizes();
  if (sharding != 0) {
    if (auto found = ShardingTable::get().sharding(sharding)) text << " " << to_string(found->placements);
  }
  return text.str();
}

// LibTorch appends a C++ backtrace after the first line or "Exception raised from".
inline std::string first_part(const char* what) {
  std::string text(what);
  const size_t end = text.find("\nException raised from");
  return end == std::string::npos ? text : text.substr(0, end);
}

// What failed, with where the worker is in the program.
inline Failure place_of(const WorkerState& state, std::string text) {
  return {std::move(text), state.site, record_of_graph(state.graph, state.record), state.worker, state.host};
}

inline FailurePtr make_failure(WorkerState& state, const std::string& text) {
  constexpr size_t kMostUnreported = 1000, kMostText = 3000;
  auto failure = std::make_shared<Failure>(place_of(state, text.substr(0, kMostText)));
  ++state.num_failures;
  if (state.unreported.size() < kMostUnreported) {
    state.unreported.push_back(failure);
  } else {
    ++state.unlisted;
  }
  return failure;
}

inline std::string message_of(const std::exception& error) {
  std::string text;
  if (is_python_error(error, &text)) return text;
  if (const auto* c10_error = dynamic_cast<const c10::Error*>(&error)) {
    return first_part(c10_error->what_without_backtrace());
  }
  return first_part(error.what());
}

// Takes a slot's value away, and that of every view of its memory.
inline void spoil(WorkerState& state, uint32_t slot, const FailurePtr& failure) {
  auto& entry = state.known_slot(slot);
  if (entry.state != SlotEntry::State::kTensor) return;
  if (entry.tensor.has_storage()) {
    const auto& storage = entry.tensor.storage();
    const Spoiling spoiling{storage.getWeakStorageImpl(), failure};
    state.spoiled.emplace(storage.unsafeGetStorageImpl(), spoiling);
    state.graphs->note_spoiling(spoiling);
  }
  entry.state = SlotEntry::State::kFailed;
  entry.failure = failure;
}

// Takes away what the operator that made this slot has made.
inline void spoil_siblings(WorkerState& state, uint32_t slot, const FailurePtr& failure) {
  const uint64_t maker = state.known_slot(slot).maker;
  for (uint32_t other = 0; other < state.slots.size(); ++other) {
    const auto& entry = state.slots[other];
    if (entry.state == SlotEntry::State::kTensor && entry.maker == maker) spoil(state, other, failure);
  }
}

// A failed in-place operator leaves what it should have written without a value. One of PyTorch's without
// any return only checks what another has made (linalg.inv makes a matrix and an error code,
// then checks the code): that has no value then.
inline void spoil_written(WorkerState& state, Reader reader, uint32_t count, uint32_t number,
                          const FailurePtr& failure) {
  if (state.is_missing(number)) return;
  const auto& schema = state.op(number).handle->schema();
  const bool checks = schema.returns().empty() && !schema.is_mutable() && !state.op(number).users;
  if (!schema.is_mutable() && !checks) return;
  for (uint32_t i = 0; i < count; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    const Tag tag = reader.peek();
    uint32_t payload;
    if (tag == Tag::kSlot) {
      reader.tag(&payload);
      if (written && payload != kNoSlot) spoil(state, payload, failure);
      if (checks && payload != kNoSlot) spoil_siblings(state, payload, failure);
    } else if (tag == Tag::kSlotList || tag == Tag::kOptionalSlotList) {
      reader.tag(&payload);
      for (uint32_t k = 0; k < payload; ++k) {
        const uint32_t slot = reader.word();
        if (written && slot != kNoSlot) spoil(state, slot, failure);
      }
    } else {
      Stack ignored;
      ArgumentDecoder(state, reader).decode(1, &ignored);
    }
  }
}

inline const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// Gives slots their value back whose memory was written over.
inline void revive_slots(WorkerState& state, const c10::StorageImpl* storage) {
  for (auto& entry : state.slots) {
    if (entry.state != SlotEntry::State::kFailed || storage_of(entry.tensor) != storage) continue;
    entry.state = SlotEntry::State::kTensor;
    entry.failure = nullptr;
  }
}

// Gives a slot that is about to be written over whole its value back, and every view of its memory:
// what was lost there does not matter any more. Not where it is only a part of its memory.
inline void revive(WorkerState& state, uint32_t slot) {
  const at::Tensor whole = state.known_slot(slot).tensor;
  const auto* storage = storage_of(whole);
  if (storage == nullptr || storage->nbytes() != whole.nbytes() || !whole.is_non_overlapping_and_dense()) return;
  if (state.spoiled.erase(storage) == 0) return;
  state.graphs->note_spoiling({whole.storage().getWeakStorageImpl(), nullptr});
  revive_slots(state, storage);
}

inline std::vector<uint32_t> slots_of_argument(Reader& reader) {
  std::vector<uint32_t> slots;
  const Tag tag = reader.peek();
  if (tag != Tag::kSlot && tag != Tag::kSlotList) return slots;
  uint32_t payload;
  reader.tag(&payload);
  if (tag == Tag::kSlot) {
    slots.push_back(payload);
  } else {
    reader.need(payload);
    for (uint32_t i = 0; i < payload; ++i) slots.push_back(reader.word());
  }
  std::erase(slots, kNoSlot);
  return slots;
}

// Revives what an operator's first argument names, but for what its second reads. reader: at the
// arguments.
inline void revive_written(WorkerState& state, Reader reader, uint32_t count) {
  const auto written = slots_of_argument(reader);
  const auto read = count > 1 ? slots_of_argument(reader) : std::vector<uint32_t>();
  for (uint32_t slot : written) {
    const auto* storage = storage_of(state.known_slot(slot).tensor);
    const bool reads_it = std::any_of(read.begin(), read.end(), [&](uint32_t other) {
      return storage_of(state.known_slot(other).tensor) == storage;
    });
    if (!reads_it) revive(state, slot);
  }
}

}  // namespace dtorch
