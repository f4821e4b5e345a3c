// One run of a section of a plan: records that may run beside each other.
//
// Which of them runs where is in its OperatorAssignInfo, by which the policy of the planner
// (dtorch_mpi/passes/assignment.py) divides stretches of a plan. What has no place in such a section
// runs on stream 0, the graph's own, behind all that was issued before.
#pragma once

#include <algorithm>
#include <vector>

#include "worker/bound_operator.h"
#include "worker/record_note.h"

namespace dtorch {

class SectionRun {
 public:
  SectionRun(WorkerState& state, WorkerPlan& plan, const Section& section)
      : state_(state), plan_(plan), stretch_(plan.stretch_of(section.first)), section_(section),
        first_maker_(state.maker + 1) {}

  // Whether each record can run beside others: bound, with a value in all that it reads.
  bool is_possible() {
    if (!state_.spoiled.empty() || !state_.pending.empty()) return false;
    const auto has_value = [&](uint32_t tensor) {
      const uint32_t slot = plan_.slots[tensor];
      return slot < state_.slots.size() && state_.slots[slot].state == SlotEntry::State::kTensor;
    };
    if (!std::ranges::all_of(section_.inputs, has_value)) return false;
    for (uint32_t tensor : section_.outputs) state_.slot(plan_.slots[tensor]);  // room for all
    for (uint32_t i = 0; i < section_.operators.size(); ++i) {
      if (kind_of(i) != Kind::kOperator) continue;
      auto& bound = stretch_.operators[record(i)];
      if (bound.state == BoundOperator::State::kStale) bind_operator(state_, stretch_, record(i), &bound);
      if (bound.state != BoundOperator::State::kBound) return false;
      if (state_.op(words_of(i)[2]).users) return false;
    }
    return true;
  }

 protected:
  struct Stream {
    Stack stack;
    uint64_t num_operators = 0;
    bool notes = false;
    std::vector<Event> events;
  };

  Stream new_stream() const {
    Stream stream;
    stream.notes = state_.timeline.is_on();
    return stream;
  }
  // The section has run, as far as it could.
  void end(const std::vector<Stream>& streams) {
    state_.maker += section_.operators.size();
    for (const auto& stream : streams) {
      state_.num_operators += stream.num_operators;
      for (const auto& event : stream.events) state_.timeline.note(event);
    }
  }

  uint32_t record(uint32_t i) const { return section_.first.record + i; }
  const uint32_t* words_of(uint32_t i) const {
    return stretch_.window.words().data() + stretch_.window.offset(record(i));
  }
  Kind kind_of(uint32_t i) const { return static_cast<Kind>(words_of(i)[1] & 0xffff); }
  uint32_t slot_at(uint32_t i, uint32_t word) const {
    return plan_.slots[stretch_.tensors[stretch_.window.tensor(stretch_.window.offset(record(i)) + word)]];
  }
  const BoundOperator& bound(uint32_t i) const { return stretch_.operators[record(i)]; }

  // False: it has to run again by itself.
  bool run_one(uint32_t i, Stream* stream) {
    const int64_t began = stream->notes ? steady_ns() : 0;
    state_.activity->step();
    try {
      if (!run_unguarded(state_, plan_, stretch_, record(i), first_maker_ + i, &stream->stack)) return false;
    } catch (const std::exception&) {
      return false;
    }
    if (kind_of(i) != Kind::kOperator) return true;
    ++stream->num_operators;
    if (stream->notes) note(i, began, stream);
    return true;
  }

  WorkerState& state_;
  WorkerPlan& plan_;
  Stretch& stretch_;
  const Section& section_;

 private:
  void note(uint32_t i, int64_t began, Stream* stream) {
    Event event;
    event.begin = began;
    event.end = steady_ns();
    event.record = state_.record;
    event.flags = Event::kReplayed | (section_.first.region != 0 ? Event::kRewritten : 0);
    event.thread = section_.operators[i].stream;
    if (describe_record(words_of(i), &event)) stream->events.push_back(event);
  }

  const uint64_t first_maker_;
};

// The section that begins at a place, or null.
inline const Section* section_at(const WorkerPlan& plan, const Place& place) {
  const auto found = std::ranges::lower_bound(plan.sections, plan.position(place), {}, [&](const Section& section) {
    return plan.position(section.first);
  });
  if (found == plan.sections.end() || found->first.region != place.region || found->first.record != place.record) {
    return nullptr;
  }
  return &*found;
}

}  // namespace dtorch
