// Sections of plans on an accelerator: one thread issues their records to several of its streams.
//
// Where a record waits for one of another stream, an event of that one stands between. Memory is given
// back to the stream that it was allocated for, so a tensor that another stream uses is kept for that,
// too (DeviceStreams::keep_for). Behind a section all is in the order of the graph's own stream again.
#pragma once

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "worker/section_run.h"

namespace dtorch {

class StreamedSectionRun : public SectionRun {
 public:
  StreamedSectionRun(WorkerState& state, WorkerPlan& plan, const Section& section)
      : SectionRun(state, plan, section), events_(section.operators.size()) {}

  void run() {
    const uint32_t count = section_.num_streams;
    std::vector<c10::Stream> lanes;
    for (uint32_t number = 0; number < count; ++number) lanes.push_back(state_.streams.branch(number));
    const auto begin = DeviceStreams::mark(lanes[0]);
    for (uint32_t number = 1; number < count; ++number) begin.block(lanes[number]);
    // An event is worth recording where another stream waits for it.
    std::vector<bool> is_awaited(section_.operators.size());
    for (const auto& assigned : section_.operators) {
      for (uint32_t other : assigned.waits) {
        if (section_.operators[other].stream != assigned.stream) is_awaited[other] = true;
      }
    }
    std::vector<Stream> streams;
    for (uint32_t number = 0; number < count; ++number) streams.push_back(new_stream());
    for (; num_run_ < section_.operators.size(); ++num_run_) {
      const auto& assigned = section_.operators[num_run_];
      const auto& lane = lanes[assigned.stream];
      for (uint32_t other : assigned.waits) {
        if (events_[other] && section_.operators[other].stream != assigned.stream) events_[other]->block(lane);
      }
      const c10::StreamGuard guard(lane);
      keep_inputs(num_run_, assigned.stream, lane);
      const bool has_run = run_one(num_run_, &streams[assigned.stream]);
      streams[assigned.stream].stack.clear();
      if (!has_run) break;
      note_outputs(num_run_, assigned.stream);
      if (is_awaited[num_run_]) events_[num_run_] = DeviceStreams::mark(lane);
    }
    for (uint32_t number = 1; number < count; ++number) DeviceStreams::order(lanes[0], lanes[number]);
    for (const auto& [slot, number] : lane_of_) {
      if (number != 0) DeviceStreams::keep_for(lanes[0], state_.slots[slot].tensor);
    }
    end(streams);
  }

  // Whether a record has run: up to the first that could not.
  bool has_run(uint32_t i) const { return i < num_run_; }

 private:
  uint32_t lane_of(uint32_t slot) const {
    const auto found = lane_of_.find(slot);
    return found == lane_of_.end() ? 0 : found->second;
  }

  // What this stream did not make itself. A view's memory may be another stream's than the view's maker's;
  // it was kept for that one then.
  void keep_inputs(uint32_t i, uint32_t number, const c10::Stream& lane) {
    if (kind_of(i) != Kind::kOperator) return;
    const auto keep = [&](uint32_t tensor) {
      if (tensor == Window::kNone) return;
      const uint32_t slot = plan_.slots[tensor];
      if (lane_of(slot) != number) DeviceStreams::keep_for(lane, state_.slots[slot].tensor);
    };
    for (const auto& [argument, tensor] : bound(i).tensors) keep(tensor);
    for (const auto& list : bound(i).lists) std::ranges::for_each(list.tensors, keep);
  }

  void note_outputs(uint32_t i, uint32_t number) {
    const uint32_t* words = words_of(i);
    switch (kind_of(i)) {
      case Kind::kFree: lane_of_.erase(slot_at(i, 2)); return;
      case Kind::kMoveSlots:
        for (uint32_t w = kHeaderWords; w < words[0]; w += 2) {
          lane_of_[slot_at(i, w + 1)] = lane_of(slot_at(i, w));
          lane_of_.erase(slot_at(i, w));
        }
        return;
      default: break;
    }
    for (const auto& output : bound(i).outputs) {
      for (uint32_t tensor : output.tensors) lane_of_[plan_.slots[tensor]] = number;
    }
  }

  std::vector<std::optional<c10::Event>> events_;  // one a record
  std::unordered_map<uint32_t, uint32_t> lane_of_;  // by slot: the stream that made its tensor in here
  uint32_t num_run_ = 0;
};

}  // namespace dtorch
