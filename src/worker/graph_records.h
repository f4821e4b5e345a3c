// Records between graphs, and the turn of a batch's collectives.
#pragma once

#include <utility>

#include "worker/failure.h"
#include "worker/slots.h"

namespace dtorch {

// Waits until `condition` holds; false if the worker is stopped before.
template <class Condition>
bool wait_until(WorkerState& state, Condition&& condition) {
  constexpr int kSpins = 50;
  const WaitNote note(*state.activity, Activity::kOtherGraph, state.site);
  Backoff backoff(kSpins);
  while (!condition()) {
    if (state.stopped || !state.has_others) return false;
    backoff.pause();
  }
  return true;
}

// Before a collective begins.
inline void take_turn(WorkerState& state) {
  if (C10_LIKELY(!state.turn || state.has_turn)) return;
  state.has_turn = wait_until(state, [&] { return state.graphs->turns.has_come(*state.turn); });
  if (!state.has_turn) throw std::runtime_error("the worker was stopped");
}

// Behind a batch.
inline void pass_turn(WorkerState& state) {
  if (C10_LIKELY(!state.turn)) return;
  state.graphs->turns.pass(*state.turn);
  state.turn.reset();
  state.has_turn = false;
}

// Takes in which memory other graphs have left without a value, or given one.
inline void hear_of_spoilings(WorkerState& state) {
  for (auto& spoiling : state.graphs->spoilings_since(&state.spoilings_seen)) {
    auto storage = spoiling.storage.lock();
    if (!storage) continue;
    if (spoiling.failure) {
      state.spoiled.insert_or_assign(storage.get(), spoiling);
    } else {
      state.spoiled.erase(storage.get());
      revive_slots(state, storage.get());
    }
  }
}

// Before a batch: the program sends no wait where it knows the other graph to be through.
inline void hear_before_batch(WorkerState& state) {
  if (C10_UNLIKELY(state.graphs->num_spoilings() != state.spoilings_seen)) hear_of_spoilings(state);
}

inline void wait_for_graph(WorkerState& state, Reader& reader, uint32_t graph, uint32_t begun) {
  const auto records = static_cast<uint64_t>(reader.int_value());
  if (graph >= kMaxGraphs || graph == state.graph) Reader::fail("a wait for a graph that does not exist");
  wait_until(state, [&] { return state.graphs->has_executed(graph, begun, records); });
  state.graphs->order(state.streams, graph);
  hear_of_spoilings(state);
}

inline void export_slot(WorkerState& state, Reader& reader, uint32_t number) {
  const auto ticket = static_cast<uint64_t>(reader.int_value());
  const auto& entry = state.known_slot(number);
  state.graphs->hand_over(ticket, {entry.tensor, failure_of(state, entry), entry.sharding,
                                   entry.state == SlotEntry::State::kAbsent});
}

inline void import_slot(WorkerState& state, Reader& reader, uint32_t graph, uint32_t number) {
  if (graph >= kMaxGraphs) Reader::fail("an import from a graph that does not exist");
  const auto ticket = static_cast<uint64_t>(reader.int_value());
  std::optional<HandedOver> found;
  wait_until(state, [&] {
    found = state.graphs->take(ticket);
    return found.has_value();
  });
  if (!found) return;
  state.graphs->order(state.streams, graph);
  if (state.streams.exist()) DeviceStreams::keep_for(state.streams.compute(), found->tensor);
  hear_of_spoilings(state);
  auto& entry = state.slot(number);
  entry = SlotEntry();
  entry.is_import = true;
  entry.maker = state.maker;
  entry.sharding = found->sharding;
  entry.failure = found->failure;
  entry.tensor = std::move(found->tensor);
  entry.state = entry.failure      ? SlotEntry::State::kFailed
                : found->is_absent ? SlotEntry::State::kAbsent
                                   : SlotEntry::State::kTensor;
}

}  // namespace dtorch
