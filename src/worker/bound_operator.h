// An operator of a plan: its arguments are decoded once, but for its tensors, and again where the
// controller says that one has changed.
#pragma once

#include <utility>

#include "worker/call.h"
#include "worker/plan.h"

namespace dtorch {

// Decodes what stays the same from run to run.
inline void bind_operator(WorkerState& state, const Stretch& stretch, uint32_t record, BoundOperator* bound) {
  *bound = BoundOperator();
  bound->state = BoundOperator::State::kGeneral;
  const auto& words = stretch.window.words();
  const uint32_t* at = words.data() + stretch.window.offset(record);
  Reader reader = Reader::record(at, at + stretch.window.length(record));
  const uint32_t count = reader.count() & (kShardedOperator - 1);
  const bool sharded = (reader.count() & kShardedOperator) != 0;
  if (state.is_missing(reader.number())) return;
  const auto& schema = state.op(reader.number()).handle->schema();
  reader.enter();
  reader.word();
  if (count != schema.arguments().size()) return;  // the general way says so
  const auto tensor_at = [&](const uint32_t* word) {
    return stretch.tensors[stretch.window.tensor(static_cast<uint32_t>(word - words.data()))];
  };
  for (uint32_t a = 0; a < count; ++a) {
    const Tag tag = reader.peek();
    uint32_t payload;
    if (tag == Tag::kSlot) {
      const uint32_t* word = reader.position();
      reader.tag(&payload);
      if (payload != kNoSlot) bound->tensors.emplace_back(a, tensor_at(word));
      bound->arguments.emplace_back(at::Tensor());
    } else if (tag == Tag::kSlotList || tag == Tag::kOptionalSlotList) {
      reader.tag(&payload);
      BoundOperator::List list{a, tag == Tag::kOptionalSlotList, {}};
      for (uint32_t i = 0; i < payload; ++i) {
        const uint32_t* word = reader.position();
        list.tensors.push_back(reader.word() == kNoSlot ? Window::kNone : tensor_at(word));
      }
      bound->lists.push_back(std::move(list));
      bound->arguments.emplace_back();
    } else if (tag == Tag::kGenerator || tag == Tag::kShardedGenerator) {
      return;  // its state is set anew by each call
    } else if (tag == Tag::kScalarTensor && schema.arguments()[a].alias_info() != nullptr) {
      return;  // the result may be the very tensor
    } else {
      const Obstacle obstacle = ArgumentDecoder(state, reader).decode(1, &bound->arguments);
      if (obstacle.absent || obstacle.failure) return;
    }
  }
  for (uint32_t r = 0; !reader.done(); ++r) {
    const uint32_t* word = reader.position();
    uint32_t payload;
    const Tag tag = reader.tag(&payload);
    if (tag == Tag::kOutputIgnored) continue;
    BoundOperator::Output output{r, tag == Tag::kOutputList, {}, {}};
    const uint32_t length = output.is_list ? payload : 1;
    for (uint32_t i = 0; i < length; ++i) {
      if (output.is_list) {
        word = reader.position();
        reader.word();
      }
      output.tensors.push_back(tensor_at(word));
      output.shardings.push_back(sharded ? reader.word() : 0);
    }
    bound->outputs.push_back(std::move(output));
  }
  bound->state = BoundOperator::State::kBound;
}

// A list of a plan's tensors as LibTorch takes it: of tensors, or of optional ones. False if one has
// no value. tensor_of: null for one that has none.
template <class Element, class TensorOf>
bool take_list(const std::vector<uint32_t>& numbers, TensorOf&& tensor_of, c10::IValue* list) {
  c10::List<Element> values;
  values.reserve(numbers.size());
  for (uint32_t number : numbers) {
    if (number == Window::kNone) {
      values.push_back(Element());
    } else if (const at::Tensor* value = tensor_of(number)) {
      values.push_back(*value);
    } else {
      return false;
    }
  }
  *list = std::move(values);
  return true;
}

// Makes the arguments, tensors among them. False if one has no value.
inline bool take_tensors(WorkerState& state, const WorkerPlan& plan, const BoundOperator& bound, Stack* stack) {
  const auto tensor_of = [&](uint32_t number) -> const at::Tensor* {
    const uint32_t slot = plan.slots[number];
    if (slot >= state.slots.size()) return nullptr;
    if (C10_UNLIKELY(state.slots[slot].state == SlotEntry::State::kPending)) state.settle(slot);
    if (state.slots[slot].state != SlotEntry::State::kTensor) return nullptr;
    return &state.slots[slot].tensor;
  };
  *stack = bound.arguments;
  for (const auto& [argument, number] : bound.tensors) {
    const at::Tensor* value = tensor_of(number);
    if (value == nullptr) return false;
    (*stack)[argument] = *value;
  }
  for (const auto& list : bound.lists) {
    auto* place = &(*stack)[list.argument];
    if (!(list.optional ? take_list<std::optional<at::Tensor>>(list.tensors, tensor_of, place)
                        : take_list<at::Tensor>(list.tensors, tensor_of, place))) {
      return false;
    }
  }
  return true;
}

inline void put_results(WorkerState& state, const WorkerPlan& plan, const BoundOperator& bound,
                        const Stack& stack, uint64_t maker) {
  for (const auto& output : bound.outputs) {
    if (output.returned >= stack.size()) Reader::fail("more outputs than the operator returns");
    const auto& value = stack[output.returned];
    if (output.is_list ? !value.isTensorList() || value.toListRef().size() != output.tensors.size()
                       : !value.isTensor()) {
      Reader::fail("outputs of another kind than the operator returns");
    }
    for (size_t i = 0; i < output.tensors.size(); ++i) {
      const auto& tensor = output.is_list ? value.toListRef()[i].toTensor() : value.toTensor();
      put_value(state, plan.slots[output.tensors[i]], tensor, output.shardings[i], maker);
    }
  }
}

// Runs a record that is an operator, bound and not a user's, a free or a move. False: an input has no value.
// Raises what LibTorch does: whoever calls this has another way to run the record, by which errors are told.
inline bool run_unguarded(WorkerState& state, const WorkerPlan& plan, const Stretch& stretch, uint32_t record,
                          uint64_t maker, Stack* stack) {
  const auto& window = stretch.window;
  const uint32_t begin = window.offset(record), *words = window.words().data() + begin;
  const auto slot_at = [&](uint32_t word) { return plan.slots[stretch.tensors[window.tensor(begin + word)]]; };
  switch (static_cast<Kind>(words[1] & 0xffff)) {
    case Kind::kFree: free_slot(state, slot_at(2)); return true;
    case Kind::kMoveSlots:
      for (uint32_t w = kHeaderWords; w < words[0]; w += 2) {
        state.slots[slot_at(w + 1)] = std::exchange(state.slots[slot_at(w)], SlotEntry());
      }
      return true;
    default: break;
  }
  if (!take_tensors(state, plan, stretch.operators[record], stack)) return false;
  call_library(state.op(words[2]), stack);
  put_results(state, plan, stretch.operators[record], *stack, maker);
  stack->clear();
  return true;
}

// For others to see what this worker is at.
inline void note_operator(WorkerState& state, const uint32_t* words) {
  state.site = words[3];
  state.activity->begin(static_cast<uint32_t>(Kind::kOperator), words[2], state.site);
  if (state.notes_flight) flight_record().note(words[2], state.site);
}

// Runs an operator of a plan. False: it has to go the general way.
inline bool run_bound(WorkerState& state, WorkerPlan& plan, Stretch& stretch, uint32_t record) {
  auto& bound = stretch.operators[record];
  if (C10_UNLIKELY(bound.state == BoundOperator::State::kStale)) bind_operator(state, stretch, record, &bound);
  if (bound.state == BoundOperator::State::kGeneral) return false;
  if (C10_UNLIKELY(!state.spoiled.empty()) || C10_UNLIKELY(!take_tensors(state, plan, bound, &state.stack))) {
    state.stack.clear();
    return false;
  }
  const uint32_t* header = stretch.window.words().data() + stretch.window.offset(record);
  note_operator(state, header);
  FailurePtr failure;
  if (C10_UNLIKELY(!call_kernel(state, state.op(header[2]), header[kHeaderWords], &failure))) {
    Reader reader = written_record(plan, stretch, record);
    const uint32_t count = reader.count(), number = reader.number();
    reader.enter();
    reader.word();
    const Reader arguments = reader;
    Stack ignored;
    ArgumentDecoder(state, reader).decode(count & (kShardedOperator - 1), &ignored);
    settle_failure(state, arguments, reader, count, number, failure, false);
    return true;
  }
  put_results(state, plan, bound, state.stack, state.maker);
  state.stack.clear();
  return true;
}

}  // namespace dtorch
