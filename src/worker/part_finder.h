// The parts of a plan that graphs of the device may hold.
#pragma once

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "worker/bound_operator.h"

namespace dtorch {

// Consecutive records of the program, or what runs in their place, whole regions at a time; within a region that
// does not fit as a whole, some of its records. What comes in one message to all workers (wire/graph_spans.h) this
// one may have to divide further.
class PartFinder {
 public:
  PartFinder(WorkerState& state, WorkerPlan& plan) : state_(state), plan_(plan) {}

  std::vector<CapturedPart> find() {
    for (const auto& span : plan_.graph_spans.find(plan_.stretch.window)) {
      find_between(span.first);
      for (uint32_t record = span.first; record < span.last;) {
        if (region_ == plan_.regions.size() || plan_.regions[region_].first > record) {
          add({0, record}, {0, record}, record + 1);
          ++record;
        } else {
          record = plan_.regions[region_].last;
          find_in_region(true);
        }
      }
      close();
    }
    find_between(plan_.stretch.window.num_records());
    return std::move(parts_);
  }

 private:
  static constexpr uint32_t kFewestOperators = 4;

  bool fits(const Place& place) {
    auto& stretch = plan_.stretch_of(place);
    const uint32_t record = place.record, *words = stretch.window.words().data() + stretch.window.offset(record);
    const auto kind = static_cast<Kind>(words[1] & 0xffff);
    if (kind == Kind::kFree || kind == Kind::kMoveSlots) return true;
    if (kind != Kind::kOperator || stretch.varies[record] || stretch.resists[record]) return false;
    if (state_.is_missing(words[2]) || state_.op(words[2]).users) return false;
    // It says where in all of a tensor's memory its elements are: another tensor's, the next time.
    if (state_.op(words[2]).name.starts_with("aten::as_strided")) return false;
    auto& bound = stretch.operators[record];
    if (bound.state == BoundOperator::State::kStale) bind_operator(state_, stretch, record, &bound);
    return bound.state == BoundOperator::State::kBound;
  }

  // Regions come in one message by themselves too.
  void find_between(uint32_t end) {
    while (region_ < plan_.regions.size() && plan_.regions[region_].first < end) find_in_region(false);
  }

  void find_in_region(bool in_span) {
    const auto& region = plan_.regions[region_++];
    // Kernels over lists, which no GPU has, may have to leave it to the program's own records. The others only
    // where something has no value, and then no part is a graph.
    if (!region.written.empty()) return close();
    std::vector<Place> places;
    for (uint32_t r = 0; r < region.stretch.window.num_records(); ++r) places.push_back({region_, r});
    if (in_span && std::ranges::all_of(places, [&](const Place& place) { return fits(place); })) {
      for (const auto& place : places) add(place, {0, region.first}, region.last);
      return;
    }
    close();
    for (const auto& place : places) add(place, place, place.record + 1);
    close();
  }

  // first, end: where a part would begin with it, and where one ends behind it.
  void add(const Place& place, const Place& first, uint32_t end) {
    if (!fits(place)) return close();
    const auto& stretch = plan_.stretch_of(place);
    const auto& window = stretch.window;
    const uint32_t what = window.words()[window.offset(place.record) + 1];
    const bool is_operator = static_cast<Kind>(what & 0xffff) == Kind::kOperator;
    if (!part_) {
      // What is freed before had better be.
      if (!is_operator && place.region == first.region) return;
      part_ = CapturedPart{.first = first};
    }
    part_->last = end;
    part_->places.push_back(place);
    operators_ += is_operator;
    for (uint32_t w = window.offset(place.record); w < window.offset(place.record + 1); ++w) {
      if (!is_slot(window.kind(w))) continue;
      const uint32_t tensor = stretch.tensors[window.tensor(w)];
      if (is_definition(window.kind(w))) {
        made_.insert(tensor);
      } else if (!made_.contains(tensor)) {
        const auto [input, is_new] = inputs_.emplace(tensor, part_->inputs.size());
        if (is_new) part_->inputs.push_back({tensor, false});
        part_->inputs[input->second].is_read |= is_operator;
      }
    }
  }

  void close() {
    if (part_ && operators_ >= kFewestOperators) parts_.push_back(std::move(*part_));
    part_.reset();
    operators_ = 0;
    made_.clear();
    inputs_.clear();
  }

  WorkerState& state_;
  WorkerPlan& plan_;
  std::vector<CapturedPart> parts_;
  uint32_t region_ = 0;  // the next
  std::optional<CapturedPart> part_;
  uint32_t operators_ = 0;
  std::unordered_set<uint32_t> made_;
  std::unordered_map<uint32_t, size_t> inputs_;
};

// Finds a plan's parts anew where others may be graphs than did; those that stay are kept as they are.
inline void find_parts(WorkerState& state, WorkerPlan& plan) {
  plan.divided_version = plan.graph_spans.version();
  plan.is_divided = true;
  auto known = std::exchange(plan.captured, PartFinder(state, plan).find());
  const auto position = [&](const CapturedPart& part) { return plan.position(part.first); };
  for (auto& part : plan.captured) {
    const auto found = std::ranges::lower_bound(known, position(part), {}, position);
    if (found == known.end() || found->first.region != part.first.region || found->first.record != part.first.record ||
        found->last != part.last || found->places.size() != part.places.size()) {
      continue;
    }
    part = std::move(*found);
  }
}

}  // namespace dtorch
