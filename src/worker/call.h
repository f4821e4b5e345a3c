// An operator's record, executed. Exceptions of LibTorch become failures here.
#pragma once

#include "worker/arguments.h"
#include "worker/failure.h"
#include "worker/slots.h"

namespace dtorch {

// worker/pending.h
void watch_pending(WorkerState& state);
void settle_all(WorkerState& state);

// Calls LibTorch with the arguments on the stack, where the results come.
inline void call_library(const WorkerOperator& op, Stack* stack) {
  if (!op.unchecked.empty()) op.unchecked.check(*stack);
  op.handle->callBoxed(*stack);
}

// The same on state.stack, of any operator. call: its number in the record. False: it has failed.
inline bool call_kernel(WorkerState& state, const WorkerOperator& op, uint32_t call, FailurePtr* failure) {
  try {
    if (C10_UNLIKELY(state.num_unwatched > 0)) watch_pending(state);
    if (C10_UNLIKELY(op.users != nullptr)) {
      op.unchecked.check(state.stack);
      op.users->call(*op.handle, call, state.device, &state.stack);
    } else {
      call_library(op, &state.stack);
    }
    ++state.num_operators;
    return true;
  } catch (const std::exception& error) {
    *failure = make_failure(state, op.name + "\x1f" + message_of(error));
    state.stack.clear();
  }
  return false;
}

// Decodes an operator record and calls LibTorch; results are left on state.stack.
// absent: this worker is not part of it.
inline bool call_operator(WorkerState& state, Reader& reader, uint32_t count, uint32_t number,
                          uint32_t call, FailurePtr* failure, bool* absent) {
  state.stack.clear();
  if (C10_UNLIKELY(state.is_missing(number))) {
    ArgumentDecoder(state, reader).decode(count, &state.stack);
    *failure = make_failure(state, state.operators[number].name + "\x1fthis worker does not know the "
                            "operator: register it (dtorch_mpi.python_kernel, torch.library) before "
                            "dtorch_mpi.init(), where workers stay, in a module that every rank imports");
    return false;
  }
  const WorkerOperator& known = state.op(number);
  const c10::OperatorHandle& op = *known.handle;
  if (count != op.schema().arguments().size()) Reader::fail("another number of arguments than the operator has");
  if (C10_UNLIKELY(!state.spoiled.empty()) && known.writes_over) revive_written(state, reader, count);
  Obstacle obstacle = ArgumentDecoder(state, reader, !known.draws_by_place).decode(count, &state.stack);
  if (C10_UNLIKELY(obstacle.absent || obstacle.failure)) {
    *absent = obstacle.absent;
    *failure = std::move(obstacle.failure);
    return false;
  }
  return call_kernel(state, known, call, failure);
}

// The operator's tensor arguments in words, decoded again for the error text.
inline std::string arguments_in_words(WorkerState& state, Reader reader, uint32_t count) {
  std::string text;
  for (uint32_t i = 0; i < count && !reader.done(); ++i) {
    const Tag tag = reader.peek();
    if (tag == Tag::kSlot) {
      uint32_t slot;
      reader.tag(&slot);
      if (slot == kNoSlot) continue;
      auto& entry = state.known_slot(slot);
      text += (text.empty() ? "" : ", ") + described(entry.tensor, entry.sharding);
    } else if (tag == Tag::kSlotList || tag == Tag::kOptionalSlotList) {
      uint32_t length;
      reader.tag(&length);
      text += (text.empty() ? "" : ", ") + std::string("[") + std::to_string(length) + " tensors]";
      for (uint32_t k = 0; k < length; ++k) reader.word();
    } else {
      Stack ignored;
      ArgumentDecoder(state, reader).decode(1, &ignored);
    }
  }
  return text;
}

// Puts the call's results, or its failure, where the record says.
inline void store_outputs(WorkerState& state, Reader& reader, const FailurePtr& failure, bool absent,
                          bool sharded) {
  size_t next = 0;
  const bool have = !failure && !absent;
  const auto store = [&](uint32_t number, const at::Tensor* value) {
    const uint32_t sharding = sharded ? reader.word() : 0;
    if (C10_LIKELY(have)) return put_value(state, number, *value, sharding, state.maker);
    auto& entry = state.slot(number);
    entry.tensor = at::Tensor();
    entry.failure = failure;
    entry.maker = state.maker;
    entry.sharding = sharding;
    entry.state = absent ? SlotEntry::State::kAbsent : SlotEntry::State::kFailed;
  };
  while (!reader.done()) {
    uint32_t payload;
    const Tag tag = reader.tag(&payload);
    if (have && next >= state.stack.size()) Reader::fail("more outputs than the operator returns");
    const c10::IValue* value = have ? &state.stack[next++] : nullptr;
    if (tag == Tag::kOutput) {
      if (have && !value->isTensor()) Reader::fail("a slot for what is no tensor");
      store(payload, have ? &value->toTensor() : nullptr);
    } else if (tag == Tag::kOutputList) {
      if (have && (!value->isTensorList() || value->toListRef().size() != payload)) {
        Reader::fail("a list of outputs of another length than the operator returns");
      }
      for (uint32_t i = 0; i < payload; ++i) {
        store(reader.word(), have ? &value->toListRef()[i].toTensor() : nullptr);
      }
    } else if (tag != Tag::kOutputIgnored) {
      Reader::fail("a tag that opens no output");
    }
  }
}

// What becomes of an operator that failed, or that this worker has no part in. count: as in the
// record. outputs: begins behind the arguments.
inline void settle_failure(WorkerState& state, const Reader& arguments, Reader& outputs, uint32_t count,
                           uint32_t number, const FailurePtr& failure, bool absent) {
  const uint32_t num_arguments = count & (kShardedOperator - 1);
  if (failure) {
    const size_t cut = failure->text.find('\x1f');
    if (cut != std::string::npos) {
      auto& text = const_cast<Failure&>(*failure).text;  // made just now, seen by nobody
      text = text.substr(0, cut) + "(" + arguments_in_words(state, arguments, num_arguments) + "): " +
             text.substr(cut + 1);
    }
    spoil_written(state, arguments, num_arguments, number, failure);
  }
  store_outputs(state, outputs, failure, absent, (count & kShardedOperator) != 0);
}

inline void run_operator(WorkerState& state, Reader& reader, uint32_t count, uint32_t number) {
  if (state.notes_flight) flight_record().note(number, state.site);
  const uint32_t call = reader.word();
  FailurePtr failure;
  bool absent = false;
  const Reader arguments = reader;
  if (C10_LIKELY(call_operator(state, reader, count & (kShardedOperator - 1), number, call, &failure, &absent))) {
    store_outputs(state, reader, nullptr, false, (count & kShardedOperator) != 0);
    state.stack.clear();  // else the outputs' memory would outlive their slots
    return;
  }
  state.stack.clear();
  settle_failure(state, arguments, reader, count, number, failure, absent);
}

}  // namespace dtorch
