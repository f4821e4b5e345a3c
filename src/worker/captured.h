// Parts of plans as graphs of the device (CUDA graphs): captured once, then begun with a single call, where the
// host would need longer to issue the operators than the device to run them.
//
// A captured part holds addresses. Its inputs have to be where they were, or are copied there first, and back
// where the part writes them; what it makes lies in memory that the next run writes to again, so what outlives the
// part is copied out. What does not fit into a graph (a wait of the host, numbers that change from run to run,
// random numbers, collectives) ends a part. Whatever stands in the way of a run, the records run as they would
// without. Graphs of one Captures share memory: all of them run on the compute stream of one graph of the program.
#pragma once

#include <algorithm>

#include "worker/distinct.h"
#include "worker/part_capture.h"
#include "worker/part_finder.h"

namespace dtorch {

class PartRun : PartAccess {
 public:
  using PartAccess::PartAccess;

  // False: the records have to run by themselves.
  bool run() {
    using State = CapturedPart::State;
    if (part_.state == State::kRefused || !is_ready()) return false;
    if (part_.state == State::kUntried) {
      look_at_inputs();
      if (part_.looks < kLooks || !capture()) return false;
    } else if (!inputs_are_in_place()) {
      // Where it has been captured often enough, it stays for the runs that find all in place.
      if (part_.tries == kMostTries) return false;
      part_.state = State::kUntried;
      look_at_inputs();
      if (!capture()) return false;
    } else if (!copies_keep_apart()) {
      return false;
    }
    return replay();
  }

 private:
  static constexpr uint32_t kLooks = 3;     // by then it is known what moves
  static constexpr uint32_t kMostTries = 8;

  bool is_ready() {
    if (!state_.spoiled.empty() || state_.timeline.is_on()) return false;
    for (const auto& input : part_.inputs) {
      const uint32_t slot = plan_.slots[input.tensor];
      if (slot >= state_.slots.size()) return false;
      if (state_.slots[slot].state == SlotEntry::State::kPending) state_.settle(slot);
      if (state_.slots[slot].state != SlotEntry::State::kTensor) return false;
      const auto& tensor = state_.slots[slot].tensor;
      if (!input.is_read || !tensor.defined()) continue;
      // The value of one on the host would be part of the graph.
      if (!tensor.has_storage() || tensor.device() != state_.device) return false;
    }
    return true;
  }

  static const void* data_of(const at::Tensor& tensor) {
    return tensor.defined() ? tensor.const_data_ptr() : nullptr;
  }

  void look_at_inputs() {
    for (auto& input : part_.inputs) {
      if (!input.is_read) continue;
      const auto& tensor = entry(input.tensor).tensor;
      if (part_.looks > 0 && data_of(tensor) != input.data) input.moves = true;
      input.data = data_of(tensor);
    }
    ++part_.looks;
  }

  bool inputs_are_in_place() {
    return std::ranges::all_of(part_.inputs, [&](const CapturedPart::Input& input) {
      const auto& tensor = entry(input.tensor).tensor;
      const auto& alias = part_.inputs[input.alias];
      if (alias.is_shown && !input.own.defined() && storage_of(tensor) != storage_of(entry(alias.tensor).tensor)) {
        return false;
      }
      if (!input.is_read) return true;
      return (input.own.defined() || data_of(tensor) == input.data) && are_alike(tensor, input.like);
    });
  }

  bool capture() {
    ++part_.tries;
    PartCapture capture(state_, plan_, part_);
    if (capture.run()) {
      part_.state = CapturedPart::State::kCaptured;
      ++state_.num_graphs_captured;
      return true;
    }
    // The first time libraries may set themselves up.
    if (part_.tries < 2) return false;
    if (const auto& culprit = capture.culprit()) {
      plan_.stretch_of(*culprit).resists[culprit->record] = true;
      plan_.is_divided = false;
    } else if (part_.tries == kMostTries) {
      part_.state = CapturedPart::State::kRefused;
    }
    return false;
  }

  // False: nothing has happened.
  bool replay() {
    std::vector<at::Tensor> made;
    try {
      for (const auto& memory : part_.made) made.push_back(at::empty_like(memory));
      for (const auto& input : part_.inputs) {
        if (input.own.defined()) distinct(input.own).copy_(distinct(entry(input.tensor).tensor));
      }
      const auto begin = std::ranges::find_if(part_.places, [&](const Place& place) { return is_operator(place); });
      note_operator(state_, words_of(*begin));
      part_.graph.replay(part_.graph.graph);
    } catch (const std::exception&) {
      return false;  // for want of memory, say: told by the record that it happens to
    }
    for (const auto& input : part_.inputs) {
      if (input.own.defined() && input.is_written) distinct(entry(input.tensor).tensor).copy_(distinct(input.own));
    }
    for (size_t i = 0; i < made.size(); ++i) made[i].copy_(part_.made[i]);
    std::vector<at::Tensor> outputs;
    for (const auto& output : part_.outputs) {
      if (!output.like.defined()) {
        outputs.emplace_back();
      } else if (output.shows_input) {
        const auto& source = entry(part_.inputs[output.source].tensor).tensor;
        outputs.push_back(tensor_over(source.storage(), byte_offset(source) + output.offset, output.like));
      } else {
        outputs.push_back(tensor_over(made[output.source].storage(), output.offset, output.like));
      }
    }
    for (uint32_t tensor : part_.freed) free_slot(state_, plan_.slots[tensor]);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto& output = part_.outputs[i];
      put_value(state_, plan_.slots[output.tensor], outputs[i], output.sharding, state_.maker + 1 + output.maker);
    }
    state_.maker += part_.places.size();
    state_.num_operators += part_.num_operators;
    ++state_.num_graphs_replayed;
    return true;
  }
};

// Runs the captured part that begins at a place and ends by `end`, if there is one; returns where it ends.
inline uint32_t run_captured(WorkerState& state, WorkerPlan& plan, const Place& place, uint32_t end) {
  if (!plan.sections.empty()) return place.record;
  if (!plan.is_divided || plan.divided_version != plan.graph_spans.version()) find_parts(state, plan);
  const auto found = std::ranges::lower_bound(plan.captured, plan.position(place), {}, [&](const CapturedPart& part) {
    return plan.position(part.first);
  });
  if (found == plan.captured.end() || found->first.region != place.region || found->first.record != place.record ||
      found->last > end) {
    return place.record;
  }
  const uint32_t last = found->last;
  return PartRun(state, plan, *found).run() ? last : place.record;
}

}  // namespace dtorch
