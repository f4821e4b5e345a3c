#include "wire/graph_spans.h"

#include <algorithm>
#include <utility>

namespace dtorch {
namespace {

constexpr uint32_t kFewestOperators = 4;  // worth a graph
constexpr uint32_t kTimesForCut = 3;

Kind kind_of(const Window& window, uint32_t record) {
  return static_cast<Kind>(window.words()[window.offset(record) + 1] & 0xffff);
}

}  // namespace

void GraphSpans::forget() {
  is_divided_ = false;
  ++version_;
}

void GraphSpans::note_change(uint32_t record) {
  if (record >= has_changed_.size()) has_changed_.resize(record + 1);
  if (has_changed_[record]) return;
  has_changed_[record] = true;
  forget();
}

void GraphSpans::note_message(const Window& window, Span records) {
  if (records.first == 0) {
    earlier_ends_ = std::move(ends_);
    ends_.clear();
  }
  const uint32_t end = records.last;
  const auto span = std::ranges::upper_bound(find(window), end, {}, &Span::last);
  if (span == spans_.end() || end <= span->first) return;
  const auto earlier = earlier_ends_.find(end);
  const uint32_t times = earlier == earlier_ends_.end() ? 1 : earlier->second + 1;
  ends_[end] = times;
  if (times >= kTimesForCut && cuts_.insert(end).second) forget();
}

void GraphSpans::set_regions(std::vector<Span> regions) {
  regions_ = std::move(regions);
  forget();
}

const std::vector<Span>& GraphSpans::find(const Window& window) {
  if (!is_divided_) divide(window);
  return spans_;
}

void GraphSpans::divide(const Window& window) {
  is_divided_ = true;
  spans_.clear();
  Span span{0, 0};
  uint32_t operators = 0;
  const auto close = [&] {
    if (operators >= kFewestOperators) spans_.push_back(span);
    operators = 0;
  };
  auto region = regions_.begin();
  for (Span next{0, 0}; next.first < window.num_records(); next.first = next.last) {
    const bool is_region = region != regions_.end() && region->first == next.first;
    next.last = is_region ? (region++)->last : next.first + 1;
    if (cuts_.contains(next.first)) close();
    if (!fits(window, next)) {
      close();
      continue;
    }
    const uint32_t before = operators;
    for (uint32_t r = next.first; r < next.last; ++r) operators += kind_of(window, r) == Kind::kOperator;
    // What is freed before the first operator, and had better be, is none of it.
    if (before == 0) span.first = next.first;
    span.last = next.last;
  }
  close();
}

bool GraphSpans::fits(const Window& window, Span records) const {
  const auto cut = cuts_.upper_bound(records.first);
  if (cut != cuts_.end() && *cut < records.last) return false;
  for (uint32_t r = records.first; r < records.last; ++r) {
    const Kind kind = kind_of(window, r);
    if (kind != Kind::kOperator && kind != Kind::kFree && kind != Kind::kMoveSlots) return false;
    if (r < has_changed_.size() && has_changed_[r]) return false;
  }
  return true;
}

}  // namespace dtorch
