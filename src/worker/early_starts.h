// Redistributions of a plan that begin before their turn.
#pragma once

#include <unordered_map>
#include <utility>
#include <vector>

#include "worker/pending.h"
#include "worker/plan.h"

namespace dtorch {

// The redistributions of a part of a plan that have begun before their turn.
class EarlyStarts {
 public:
  // The part: the program's records from `first` to `last`, and where its first one begins.
  EarlyStarts(WorkerState& state, WorkerPlan& plan, uint32_t first, uint32_t last)
      : state_(state), plan_(plan), first_(first), last_(last) {}

  // Begins what may begin before the record at this position runs.
  void reach(uint64_t position) {
    if (state_.one_stream) return;
    for (; next_ < plan_.early_starts.size(); ++next_) {
      const auto& early = plan_.early_starts[next_];
      if (begins_at(early.before) > position) return;
      if (is_within(early, position)) begin(early);
    }
  }

  // The program's own records run in the place of this region.
  void leave_out(uint32_t region) { left_out_ = region; }

  // Whether the record at this position has begun; puts its value where it belongs.
  bool take(uint64_t position) {
    if (C10_LIKELY(started_.empty())) return false;
    const auto found = started_.find(position);
    if (found == started_.end()) return false;
    place(state_, found->second.first, std::move(found->second.second));
    started_.erase(found);
    return true;
  }

 private:
  // What a region makes is there behind all that runs in its place.
  uint64_t begins_at(const Place& place) const {
    if (place.region == 0 || place.region != left_out_) return plan_.position(place);
    return plan_.position({0, plan_.regions[place.region - 1].last});
  }
  bool is_past(const Place& place) const {
    return place.region != 0 && plan_.regions[place.region - 1].last <= first_;
  }
  bool is_in_part(const Place& place) const {
    if (place.region == 0) return place.record >= first_ && place.record < last_;
    const auto& region = plan_.regions[place.region - 1];
    return region.first >= first_ && region.last <= last_;
  }
  // Workers decide by the plan and the part alone, so that all begin the same collectives in the
  // same order.
  bool is_within(const EarlyStart& early, uint64_t position) const {
    const auto& before = early.before;
    if (before.region != 0 && !is_past(before) && !is_in_part(before)) return false;
    return std::ranges::all_of(early.redistributions, [&](const Place& place) {
      return is_in_part(place) && plan_.position(place) >= position;
    });
  }

  void begin(const EarlyStart& early) {
    std::vector<Redistribution> reads;
    std::vector<PendingValue> values;
    std::vector<std::vector<uint32_t>> records;
    const auto site = state_.site;
    for (const auto& place : early.redistributions) {
      Reader reader = written_record(plan_, plan_.stretch_of(place), place.record);
      state_.site = reader.site();
      records.push_back(plan_.written);
      const uint32_t input = reader.number();
      reader.enter();
      reads.push_back(read_redistribution(state_, reader, input, false));
    }
    // A worker that has no part in them leaves them to their turn.
    if (reads.front().member != nullptr && !reads.front().is_between_meshes) {
      start_together(state_, reads, &values);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (!values[i].tensor.work) continue;
      // One event for all that go together.
      if (i == 0 || values[i].tensor.work != values[0].tensor.work) {
        begin_event(state_, records[i].data(), Event::kReplayed | Event::kRewritten, &values[i]);
      }
      watch(&values[i]);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      started_.emplace(plan_.position(early.redistributions[i]), std::make_pair(reads[i].output, std::move(values[i])));
    }
    state_.site = site;
  }

  WorkerState& state_;
  WorkerPlan& plan_;
  const uint32_t first_, last_;
  size_t next_ = 0;
  uint32_t left_out_ = 0;  // the latest such region
  std::unordered_map<uint64_t, std::pair<uint32_t, PendingValue>> started_;  // by position
};

}  // namespace dtorch
