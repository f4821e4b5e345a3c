// Parts of plans as graphs of the device (CUDA graphs): captured once, then begun with a single call, where the
// host would need longer to issue the operators than the device to run them.
//
// A captured part holds addresses. Its inputs have to be where they were, or are copied there first; what it
// makes lies in memory that the next run writes to again, so what outlives the part is copied out. What does
// not fit into a graph (a wait of the host, numbers that change from run to run, random numbers, collectives)
// ends a part. Whatever stands in the way of a run, the records run as they would without.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "device/streams.h"
#include "worker/bound_operator.h"

namespace dtorch {

class PartRun {
 public:
  PartRun(WorkerState& state, WorkerPlan& plan, CapturedPart& part) : state_(state), plan_(plan), part_(part) {}

  // False: the records have to run by themselves.
  bool run() {
    if (part_.state == CapturedPart::State::kRefused || !is_ready()) return false;
    if (part_.state == CapturedPart::State::kCaptured && !inputs_are_in_place()) part_.state = CapturedPart::State::kUntried;
    if (part_.state == CapturedPart::State::kUntried && !capture()) return false;
    replay();
    return true;
  }

 private:
  static constexpr uint32_t kMostTries = 4;

  SlotEntry& entry(uint32_t tensor) { return state_.slots[plan_.slots[tensor]]; }
  const uint32_t* words_of(const Place& place) {
    const auto& window = plan_.stretch_of(place).window;
    return window.words().data() + window.offset(place.record);
  }
  BoundOperator& bound(const Place& place) { return plan_.stretch_of(place).operators[place.record]; }
  Kind kind_of(const Place& place) { return static_cast<Kind>(words_of(place)[1] & 0xffff); }
  uint32_t slot_at(const Place& place, uint32_t word) {
    const auto& stretch = plan_.stretch_of(place);
    return plan_.slots[stretch.tensors[stretch.window.tensor(stretch.window.offset(place.record) + word)]];
  }
  // The tensors that a record names: visit(tensor, whether it makes it).
  template <class Visit>
  void for_tensors(const Place& place, Visit&& visit) {
    const auto& stretch = plan_.stretch_of(place);
    const auto& window = stretch.window;
    for (uint32_t w = window.offset(place.record); w < window.offset(place.record + 1); ++w) {
      if (is_slot(window.kind(w))) visit(stretch.tensors[window.tensor(w)], is_definition(window.kind(w)));
    }
  }

  bool is_ready() {
    if (!state_.spoiled.empty() || state_.timeline.is_on()) return false;
    for (const auto& place : part_.places) {
      if (kind_of(place) == Kind::kOperator && bound(place).state != BoundOperator::State::kBound) return false;
    }
    for (const auto& input : part_.inputs) {
      const uint32_t slot = plan_.slots[input.tensor];
      if (slot >= state_.slots.size()) return false;
      if (state_.slots[slot].state == SlotEntry::State::kPending) state_.settle(slot);
      if (state_.slots[slot].state != SlotEntry::State::kTensor) return false;
    }
    return true;
  }

  bool inputs_are_in_place() {
    bool all = true;
    for (auto& input : part_.inputs) {
      if (input.own.defined() || entry(input.tensor).tensor.const_data_ptr() == input.data) continue;
      input.moves = true;
      all = false;
    }
    return all;
  }

  // Memory that an operator writes, or that shows in an output, can't be somewhere else.
  bool can_copy_inputs() {
    std::unordered_map<const c10::StorageImpl*, uint32_t> users;
    std::unordered_set<const c10::StorageImpl*> written;
    for (const auto& input : part_.inputs) ++users[storage_of(entry(input.tensor).tensor)];
    for (const auto& place : part_.places) {
      if (kind_of(place) != Kind::kOperator) continue;
      const auto& schema = state_.op(words_of(place)[2]).handle->schema();
      const auto note = [&](uint32_t argument, uint32_t tensor) {
        const auto* alias = schema.arguments()[argument].alias_info();
        if (alias == nullptr || tensor == Window::kNone) return;  // views too
        const uint32_t slot = plan_.slots[tensor];
        if (slot < state_.slots.size() && state_.slots[slot].tensor.defined()) written.insert(storage_of(state_.slots[slot].tensor));
      };
      for (const auto& [argument, tensor] : bound(place).tensors) note(argument, tensor);
      for (const auto& list : bound(place).lists) {
        for (uint32_t tensor : list.tensors) note(list.argument, tensor);
      }
    }
    return std::ranges::all_of(part_.inputs, [&](const auto& input) {
      const auto* storage = storage_of(entry(input.tensor).tensor);
      return !input.moves || (users[storage] == 1 && !written.contains(storage));
    });
  }

  bool capture() {
    if (++part_.tries > kMostTries || !can_copy_inputs()) return refuse();
    std::vector<std::pair<uint32_t, SlotEntry>> before;  // by slot
    note_slots(&before);
    const auto& compute = state_.streams.compute();
    for (auto& input : part_.inputs) {
      const at::Tensor tensor = entry(input.tensor).tensor;
      input.own = at::Tensor();
      if (input.moves) {
        input.own = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
        entry(input.tensor).tensor = input.own;
      }
      input.data = tensor.const_data_ptr();
    }
    const auto& stream = state_.streams.capture();
    DeviceStreams::order(stream, compute);
    bool has_run = capture_on(stream);
    DeviceStreams::order(compute, stream);
    if (has_run) has_run = note_effects(before);
    for (const auto& memory : part_.made) DeviceStreams::keep_for(compute, memory);
    for (auto& [slot, known] : before) state_.slots[slot] = std::move(known);
    state_.stack.clear();
    if (!has_run) {
      part_.graph = {};
      return part_.tries < 2 ? false : refuse();  // the first time libraries may set themselves up
    }
    part_.state = CapturedPart::State::kCaptured;
    return true;
  }

  // What is raised is told when the records run by themselves.
  bool capture_on(const c10::Stream& stream) {
    const c10::StreamGuard guard(stream);
    bool has_run = false;
    try {
      state_.graph_maker->begin();
    } catch (const std::exception&) {
      return false;
    }
    try {
      has_run = issue();
    } catch (const std::exception&) {
    }
    try {
      part_.graph = state_.graph_maker->end();
    } catch (const std::exception&) {
      return false;
    }
    return has_run;
  }

  bool refuse() {
    part_ = CapturedPart{.first = part_.first, .last = part_.last, .state = CapturedPart::State::kRefused};
    return false;
  }

  void note_slots(std::vector<std::pair<uint32_t, SlotEntry>>* before) {
    std::unordered_set<uint32_t> seen;
    for (const auto& place : part_.places) {
      for_tensors(place, [&](uint32_t tensor, bool) {
        const uint32_t slot = plan_.slots[tensor];
        if (seen.insert(slot).second) before->emplace_back(slot, state_.slot(slot));
      });
    }
  }

  bool issue() {
    part_.num_operators = 0;
    for (size_t i = 0; i < part_.places.size(); ++i) {
      const auto& place = part_.places[i];
      if (kind_of(place) == Kind::kFree) {
        free_slot(state_, slot_at(place, 2));
        continue;
      }
      if (kind_of(place) == Kind::kMoveSlots) {
        for (uint32_t w = kHeaderWords; w < words_of(place)[0]; w += 2) {
          state_.slots[slot_at(place, w + 1)] = std::exchange(state_.slots[slot_at(place, w)], SlotEntry());
        }
        continue;
      }
      if (!take_tensors(state_, plan_, bound(place), &state_.stack)) return false;
      const auto& op = state_.op(words_of(place)[2]);
      if (!op.unchecked.empty()) op.unchecked.check(state_.stack);
      op.handle->callBoxed(state_.stack);
      put_results(state_, plan_, bound(place), state_.stack, i);
      state_.stack.clear();
      ++part_.num_operators;
    }
    return true;
  }

  static at::Tensor bytes_of(const at::Tensor& tensor) {
    auto bytes = at::empty({0}, tensor.options().dtype(at::kByte));
    return bytes.set_(tensor.storage(), 0, {static_cast<int64_t>(tensor.storage().nbytes())}, {1});
  }
  // A tensor over this memory.
  static at::Tensor tensor_over(const at::Tensor& memory, const at::Tensor& like) {
    auto made = at::empty({0}, memory.options().dtype(like.dtype()));
    made.set_(memory.storage(), like.storage_offset(), like.sizes(), like.strides());
    if (like.is_conj()) made._set_conj(true);
    if (like.is_neg()) made._set_neg(true);
    return made;
  }
  static at::Tensor without_memory(const at::Tensor& tensor) {
    auto made = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
    made.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
    if (tensor.is_conj()) made._set_conj(true);
    if (tensor.is_neg()) made._set_neg(true);
    return made;
  }

  // What the part has made and freed.
  bool note_effects(const std::vector<std::pair<uint32_t, SlotEntry>>& before) {
    part_.freed.clear();
    part_.made.clear();
    part_.outputs.clear();
    std::unordered_map<uint32_t, const SlotEntry*> known;
    for (const auto& [slot, was] : before) known[slot] = &was;
    std::unordered_map<const c10::StorageImpl*, size_t> inputs, made;
    for (size_t i = 0; i < part_.inputs.size(); ++i) {
      const auto& input = part_.inputs[i];
      const auto& was = *known.at(plan_.slots[input.tensor]);
      // A part that has copies of inputs shows none of them: can_copy_inputs().
      inputs.emplace(storage_of(input.own.defined() ? input.own : was.tensor), i);
      if (entry(input.tensor).state == SlotEntry::State::kEmpty) part_.freed.push_back(input.tensor);
    }
    std::unordered_set<uint32_t> seen;
    bool fits = true;
    const auto note = [&](uint32_t tensor, bool is_made) {
      const auto& now = entry(tensor);
      if (!is_made || now.state != SlotEntry::State::kTensor || !seen.insert(tensor).second) return;
      CapturedPart::Output output{tensor, now.sharding, now.maker, 0, false, {}};
      if (now.tensor.defined()) {
        if (!now.tensor.has_storage() || now.tensor.device() != state_.device) {
          fits = false;
          return;
        }
        const auto* storage = storage_of(now.tensor);
        output.like = without_memory(now.tensor);
        if (const auto found = inputs.find(storage); found != inputs.end()) {
          if (part_.inputs[found->second].own.defined()) fits = false;
          output.source = found->second;
          output.is_view_of_input = true;
        } else {
          const auto [at, is_new] = made.emplace(storage, part_.made.size());
          if (is_new) part_.made.push_back(bytes_of(now.tensor));
          output.source = at->second;
        }
      }
      part_.outputs.push_back(std::move(output));
    };
    for (const auto& place : part_.places) for_tensors(place, note);
    return fits;
  }

  void replay() {
    for (const auto& input : part_.inputs) {
      if (input.own.defined()) input.own.copy_(entry(input.tensor).tensor);
    }
    part_.graph.replay(part_.graph.graph);
    std::vector<at::Tensor> made;
    for (const auto& memory : part_.made) made.push_back(memory.clone());
    std::vector<at::Tensor> outputs;
    for (const auto& output : part_.outputs) {
      outputs.push_back(!output.like.defined() ? at::Tensor()
                        : tensor_over(output.is_view_of_input ? entry(part_.inputs[output.source].tensor).tensor
                                                              : made[output.source], output.like));
    }
    for (uint32_t tensor : part_.freed) free_slot(state_, plan_.slots[tensor]);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto& output = part_.outputs[i];
      put_value(state_, plan_.slots[output.tensor], outputs[i], output.sharding, state_.maker + 1 + output.maker);
    }
    state_.maker += part_.places.size();
    state_.num_operators += part_.num_operators;
    state_.num_graphs_replayed += 1;
    state_.activity->step();
  }

  WorkerState& state_;
  WorkerPlan& plan_;
  CapturedPart& part_;
};

// The parts of a plan that graphs may hold: consecutive records of the program, or what runs in their place, whole
// regions at a time; within a region that does not fit as a whole, some of its records.
class PartFinder {
 public:
  PartFinder(WorkerState& state, WorkerPlan& plan) : state_(state), plan_(plan) {}

  std::vector<CapturedPart> find() {
    uint32_t region = 0;
    for (uint32_t record = 0; record < plan_.stretch.window.num_records();) {
      if (region == plan_.regions.size() || plan_.regions[region].first > record) {
        add({0, record}, {0, record}, record + 1);
        ++record;
        continue;
      }
      const auto& found = plan_.regions[region];
      const uint32_t length = found.stretch.window.num_records();
      std::vector<Place> places;
      for (uint32_t r = 0; r < length; ++r) places.push_back({region + 1, r});
      // What runs there may be the program's own records.
      const bool is_certain = found.fused.empty() && found.written.empty();
      if (is_certain && std::ranges::all_of(places, [&](const Place& place) { return fits(place); })) {
        for (const auto& place : places) add(place, {0, record}, found.last);
      } else {
        close();
        if (is_certain) {
          for (const auto& place : places) add(place, place, place.record + 1);
        }
        close();
      }
      record = found.last;
      ++region;
    }
    close();
    return std::move(parts_);
  }

 private:
  static constexpr uint32_t kLeastOperators = 4;

  // Not one whose numbers have changed since the plan was defined.
  bool fits(const Place& place) {
    const auto& stretch = plan_.stretch_of(place);
    const uint32_t* words = stretch.window.words().data() + stretch.window.offset(place.record);
    const auto kind = static_cast<Kind>(words[1] & 0xffff);
    if (kind == Kind::kFree || kind == Kind::kMoveSlots || kind == Kind::kMark) return true;
    return kind == Kind::kOperator && !stretch.varies[place.record] && !state_.is_missing(words[2]) &&
           stretch.operators[place.record].state == BoundOperator::State::kBound && !state_.op(words[2]).users;
  }

  // first, end: where a part would begin with it, and where one ends behind it.
  void add(const Place& place, const Place& first, uint32_t end) {
    if (!fits(place)) return close();
    const auto& stretch = plan_.stretch_of(place);
    const auto& window = stretch.window;
    const auto kind = static_cast<Kind>(window.words()[window.offset(place.record) + 1] & 0xffff);
    if (!part_) part_ = CapturedPart{.first = first};
    part_->last = end;
    if (kind == Kind::kMark) return;
    part_->places.push_back(place);
    operators_ += kind == Kind::kOperator;
    for (uint32_t w = window.offset(place.record); w < window.offset(place.record + 1); ++w) {
      if (!is_slot(window.kind(w))) continue;
      const uint32_t tensor = stretch.tensors[window.tensor(w)];
      if (is_definition(window.kind(w))) {
        made_.insert(tensor);
      } else if (!made_.contains(tensor) && used_.insert(tensor).second) {
        part_->inputs.push_back({tensor});
      }
    }
  }

  void close() {
    if (part_ && operators_ >= kLeastOperators) parts_.push_back(std::move(*part_));
    part_.reset();
    operators_ = 0;
    made_.clear();
    used_.clear();
  }

  WorkerState& state_;
  WorkerPlan& plan_;
  std::vector<CapturedPart> parts_;
  std::optional<CapturedPart> part_;
  uint32_t operators_ = 0;
  std::unordered_set<uint32_t> made_, used_;
};

// Runs the captured part that begins at a place and ends by `end`, if there is one; returns where it ends.
inline uint32_t run_captured(WorkerState& state, WorkerPlan& plan, const Place& place, uint32_t end) {
  constexpr uint32_t kRunsBefore = 3;  // until operators are bound, and numbers that vary have done so
  if (plan.runs < kRunsBefore || !plan.sections.empty()) return place.record;
  if (!plan.is_divided) {
    plan.captured = PartFinder(state, plan).find();
    plan.is_divided = true;
  }
  const auto found = std::ranges::find_if(plan.captured, [&](const CapturedPart& part) {
    return part.first.region == place.region && part.first.record == place.record;
  });
  if (found == plan.captured.end() || found->last > end) return place.record;
  return PartRun(state, plan, *found).run() ? found->last : place.record;
}

}  // namespace dtorch
