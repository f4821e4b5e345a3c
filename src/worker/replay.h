// Running a plan, or a part of it. What is out of the ordinary (a failed input, random numbers,
// another kind of record than an operator) goes the general way: the record is written out and
// executed as if it had come by itself.
#pragma once

#include "worker/bound_operator.h"
#include "worker/captured.h"
#include "worker/early_starts.h"
#include "worker/record_note.h"
#include "worker/section_streams.h"
#include "worker/section_threads.h"

namespace dtorch {

// Whether a region's fused kernels do the same as the program's own records: not where an input
// has no value, for then only some of the outputs have none; nor where a list's tensors share
// memory, since the kernel does all with one before it comes to the next.
inline bool is_usable(const WorkerState& state, const WorkerPlan& plan, const Region& region) {
  if (C10_LIKELY(region.fused.empty() && region.written.empty())) return true;
  if (C10_UNLIKELY(!state.spoiled.empty())) return false;
  std::vector<std::pair<const char*, const char*>> ranges;
  const auto has_value = [&](uint32_t number, bool in_list) {
    const uint32_t slot = plan.slots[number];
    if (slot >= state.slots.size()) return false;
    const auto& entry = state.slots[slot];
    if (entry.state == SlotEntry::State::kPending) return true;  // new memory
    if (entry.state != SlotEntry::State::kTensor) return false;
    if (!in_list) return true;
    if (!entry.tensor.is_contiguous()) return false;
    const auto* data = static_cast<const char*>(entry.tensor.const_data_ptr());
    if (entry.tensor.nbytes() > 0) ranges.emplace_back(data, data + entry.tensor.nbytes());
    return true;
  };
  for (uint32_t number : region.fused) {
    if (!has_value(number, false)) return false;
  }
  for (uint32_t number : region.written) {
    if (!has_value(number, true)) return false;
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) return false;
  }
  return true;
}

// Runs one of a plan's records. `general` executes the record that it is given. flags: of its event.
template <class General>
void run_record(WorkerState& state, WorkerPlan& plan, Stretch& stretch, uint32_t record, uint16_t flags,
                General&& general) {
  const uint32_t* words = stretch.window.words().data() + stretch.window.offset(record);
  const auto kind = static_cast<Kind>(words[1] & 0xffff);
  if (kind == Kind::kMark) return;
  ++state.maker;
  RecordNote note(state, flags);
  if (kind == Kind::kOperator && run_bound(state, plan, stretch, record)) {
    return note.end(state, words);
  }
  written_record(plan, stretch, record);
  general(plan.written, flags);
}

// Runs a part of a plan: what takes the place of the records in it, where that is all in it.
template <class General>
void replay(WorkerState& state, Reader& reader, uint32_t number, General&& general) {
  WorkerPlan& plan = known_plan(state, number);
  const uint32_t first = reader.word(), last = reader.word();
  if (first > last || last > plan.stretch.window.num_records()) Reader::fail("a part that the plan does not have");
  update_plan(plan, reader);
  auto region = std::lower_bound(plan.regions.begin(), plan.regions.end(), first,
                                 [](const Region& region, uint32_t record) { return region.first < record; });
  if (state.graph_maker) plan.graph_spans.note_message(plan.stretch.window, {first, last});
  const uint64_t before = state.record;
  EarlyStarts early(state, plan, first, last);
  const auto run = [&](Stretch& stretch, const Place& place, uint16_t flags) {
    const uint64_t position = plan.position(place);
    early.reach(position);
    if (!early.take(position)) run_record(state, plan, stretch, place.record, flags, general);
  };
  // Runs what may run beside each other, if a section begins at this place and ends by `end`: returns
  // where it ends.
  const auto run_section = [&](Stretch& stretch, const Place& place, uint32_t end, uint16_t flags) {
    const Section* section = plan.sections.empty() ? nullptr : section_at(plan, place);
    if (section == nullptr || section->last() > end) return place.record;
    early.reach(plan.position(place));
    const auto run_beside = [&](auto&& running) {
      if (!running.is_possible()) return place.record;
      running.run();
      for (uint32_t i = 0; i < section->operators.size(); ++i) {
        if (!running.has_run(i)) run(stretch, {place.region, place.record + i}, flags);
      }
      return section->last();
    };
    return state.streams.exist() ? run_beside(StreamedSectionRun(state, plan, *section))
                                 : run_beside(ThreadedSectionRun(state, plan, *section));
  };
  // The same of a part that is a graph of the device.
  const auto run_graph = [&](const Place& place, uint32_t end) {
    if (C10_LIKELY(!state.graph_maker)) return place.record;
    early.reach(plan.position(place));
    return run_captured(state, plan, place, end);
  };
  for (uint32_t record = first; record < last && !state.stopped;) {
    state.record = before + (record - first);
    if (const uint32_t next = run_graph({0, record}, last); next > record) {
      record = next;
      while (region != plan.regions.end() && region->first < record) ++region;
      continue;
    }
    if (region != plan.regions.end() && region->first == record) {
      const auto number = static_cast<uint32_t>(region - plan.regions.begin()) + 1;
      if (region->last <= last && is_usable(state, plan, *region)) {
        constexpr uint16_t kFlags = Event::kReplayed | Event::kRewritten;
        const uint32_t end = region->stretch.window.num_records();
        for (uint32_t r = 0; r < end;) {
          uint32_t next = run_graph({number, r}, end);
          if (next == r) next = run_section(region->stretch, {number, r}, end, kFlags);
          if (next > r) {
            r = next;
            continue;
          }
          run(region->stretch, {number, r++}, kFlags);
        }
        record = region->last;
        ++region;
        continue;
      }
      early.leave_out(number);
      ++region;
    }
    const uint32_t end = region == plan.regions.end() ? last : std::min(last, region->first);
    const uint32_t next = run_section(plan.stretch, {0, record}, end, Event::kReplayed);
    if (next == record) run(plan.stretch, {0, record}, Event::kReplayed);
    record = std::max(next, record + 1);
  }
  state.record = before;
}

}  // namespace dtorch
