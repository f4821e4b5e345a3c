// A window that this worker has been told, and what passes have put in its place.
#pragma once

#include <algorithm>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "wire/graph_spans.h"
#include "wire/window.h"
#include "worker/captured_part.h"
#include "worker/definitions.h"
#include "worker/state.h"

namespace dtorch {

// An operator of a plan whose arguments are decoded.
struct BoundOperator {
  enum class State : uint8_t { kStale, kBound, kGeneral };
  struct List {
    uint32_t argument;
    bool optional;
    std::vector<uint32_t> tensors;  // Window::kNone for None
  };
  struct Output {
    uint32_t returned;              // which of the returns
    bool is_list;
    std::vector<uint32_t> tensors;
    std::vector<uint32_t> shardings;
  };

  State state = State::kStale;
  Stack arguments;
  std::vector<std::pair<uint32_t, uint32_t>> tensors;  // argument, tensor
  std::vector<List> lists;
  std::vector<Output> outputs;
};

// Records that a plan runs.
struct Stretch {
  Window window;
  std::vector<uint32_t> tensors;  // by tensor of the window: which it is of the plan's
  std::vector<BoundOperator> operators;  // one a record
  // By record: whether its numbers have changed from run to run; whether it can't be captured.
  std::vector<bool> varies, resists;
};

// Records that take the place of some of the program's.
struct Region {
  uint32_t first, last;  // of the program's, in the plan
  Stretch stretch;
  std::vector<std::pair<uint32_t, uint32_t>> values;  // word of the plan, word of the stretch
  // By the plan's number: what fused kernels in it read that is there before, and what kernels
  // over lists (also) write.
  std::vector<uint32_t> fused, written;
};

// Redistributions that may begin before another record runs: together, where they can.
struct EarlyStart {
  Place before;
  std::vector<Place> redistributions;
};

// Where and when an operator runs.
struct OperatorAssignInfo {
  uint32_t stream = 0;
  std::vector<uint32_t> waits;  // for the events of these records of its section
};

// Records of a plan that run on several streams.
struct Section {
  Place first;
  std::vector<OperatorAssignInfo> operators;  // one a record
  uint32_t num_streams = 1;
  // By the plan's number: what is there before, and what the records make.
  std::vector<uint32_t> inputs, outputs;

  uint32_t last() const { return first.record + static_cast<uint32_t>(operators.size()); }
};

constexpr uint32_t kMostStreams = 64;

struct WorkerPlan {
  Stretch stretch;  // the program's own records
  std::vector<Region> regions;  // in order
  std::vector<EarlyStart> early_starts;  // in the order of where they begin
  std::vector<Section> sections;         // in order

  Stretch& stretch_of(const Place& place) {
    return place.region == 0 ? stretch : regions[place.region - 1].stretch;
  }
  // Later ones are larger.
  uint64_t position(const Place& place) const {
    if (place.region == 0) return uint64_t{place.record} << 32;
    return uint64_t{regions[place.region - 1].first} << 32 | place.record;
  }

  GraphSpans graph_spans;
  std::vector<CapturedPart> captured;  // in order, once it is divided
  uint32_t divided_version = 0;        // of the spans
  bool is_divided = false;

  std::vector<uint32_t> slots;  // by tensor: where it lies on this worker
  std::vector<uint32_t> written;  // a record with this run's slots
};

constexpr uint32_t kMostPlans = 1 << 20;

inline WorkerPlan& known_plan(WorkerState& state, uint32_t number) {
  if (number >= state.plans.size() || !state.plans[number]) Reader::fail("a plan that was not defined");
  return *state.plans[number];
}

// Takes a stretch's records off a reader. tensors: how many there are for them to name by number;
// null for records that name the program's own slots.
inline void read_records(Reader& reader, uint32_t words, const size_t* tensors, Stretch* stretch) {
  reader.need(words);
  const uint32_t* at = reader.position();
  const uint32_t* end = at + words;
  for (uint32_t i = 0; i < words; ++i) reader.word();
  for (; at < end; at += *at) {
    Reader::record(at, end);  // checks its length
    stretch->window.append(at, at + *at);
  }
  const auto& lives = stretch->window.lives();
  for (uint32_t tensor = 0; tensor < lives.size(); ++tensor) {
    stretch->tensors.push_back(tensors == nullptr ? tensor : lives[tensor].slot);
    if (tensors != nullptr && lives[tensor].slot >= *tensors) Reader::fail("a tensor that the plan does not have");
  }
  stretch->operators.resize(stretch->window.num_records());
  stretch->varies.resize(stretch->window.num_records());
  stretch->resists.resize(stretch->window.num_records());
}

inline std::vector<uint32_t> read_slots(Reader& reader) {
  std::vector<uint32_t> slots;
  const uint32_t count = reader.word();
  reader.need(count);
  for (uint32_t i = 0; i < count; ++i) {
    slots.push_back(reader.word());
    if (slots.back() >= kMaxSlots) Reader::fail("a slot number beyond the last");
  }
  return slots;
}

inline void define_plan(WorkerState& state, Reader& reader, uint32_t number) {
  if (number >= kMostPlans) Reader::fail("a plan number beyond the last");
  auto plan = std::make_shared<WorkerPlan>();
  const auto own = read_slots(reader);
  read_records(reader, static_cast<uint32_t>(reader.left()), nullptr, &plan->stretch);
  size_t next = 0;
  for (const auto& life : plan->stretch.window.lives()) {
    if (life.is_temporary() && next >= own.size()) Reader::fail("a plan with too few slots");
    plan->slots.push_back(life.is_temporary() ? own[next++] : life.slot);
  }
  if (number >= state.plans.size()) state.plans.resize(number + 16);
  state.plans[number] = std::move(plan);
}

inline Place read_place(Reader& reader) {
  const uint32_t region = reader.word();
  return {region, reader.word()};
}

inline std::vector<EarlyStart> read_early_starts(Reader& reader) {
  std::vector<EarlyStart> starts;
  for (uint32_t left = reader.word(); left > 0; --left) {
    EarlyStart start{read_place(reader), {}};
    for (uint32_t members = reader.word(); members > 0; --members) {
      start.redistributions.push_back(read_place(reader));
    }
    starts.push_back(std::move(start));
  }
  return starts;
}

inline std::vector<Section> read_sections(Reader& reader) {
  std::vector<Section> sections;
  for (uint32_t left = reader.word(); left > 0; --left) {
    Section section{read_place(reader), {}, 1, {}, {}};
    for (uint32_t records = reader.word(); records > 0; --records) {
      OperatorAssignInfo assigned{reader.word(), {}};
      if (assigned.stream >= kMostStreams) Reader::fail("a stream beyond the last");
      section.num_streams = std::max(section.num_streams, assigned.stream + 1);
      for (uint32_t waits = reader.word(); waits > 0; --waits) {
        assigned.waits.push_back(reader.word());
        // Streams run their records in order, so that they can't wait for each other.
        if (assigned.waits.back() >= section.operators.size()) Reader::fail("a wait for a later record");
      }
      section.operators.push_back(std::move(assigned));
    }
    sections.push_back(std::move(section));
  }
  return sections;
}

inline void check_place(WorkerPlan& plan, const Place& place) {
  if (place.region > plan.regions.size() || place.record >= plan.stretch_of(place).window.num_records()) {
    Reader::fail("a place that the plan does not have");
  }
}

// Notes what a section's records take and make.
inline void check_section(WorkerPlan& plan, Section* section) {
  check_place(plan, section->first);
  const auto& stretch = plan.stretch_of(section->first);
  const auto& window = stretch.window;
  if (section->operators.empty() || section->last() > window.num_records()) {
    Reader::fail("a section that the plan does not have");
  }
  std::unordered_set<uint32_t> made, used;
  for (uint32_t record = section->first.record; record < section->last(); ++record) {
    const auto kind = static_cast<Kind>(window.words()[window.offset(record) + 1] & 0xffff);
    if (kind != Kind::kOperator && kind != Kind::kFree && kind != Kind::kMoveSlots) {
      Reader::fail("a record that can't run beside others");
    }
    for (uint32_t w = window.offset(record); w < window.offset(record + 1); ++w) {
      if (!is_slot(window.kind(w))) continue;
      const uint32_t tensor = stretch.tensors[window.tensor(w)];
      if (is_definition(window.kind(w))) {
        if (made.insert(tensor).second) section->outputs.push_back(tensor);
      } else if (made.count(tensor) == 0 && used.insert(tensor).second) {
        section->inputs.push_back(tensor);
      }
    }
  }
}

// Notes what a region's fused kernels take.
inline void note_fused(const WorkerState& state, Region* region) {
  const auto& window = region->stretch.window;
  std::unordered_set<uint32_t> made;
  for (uint32_t record = 0; record < window.num_records(); ++record) {
    const uint32_t begin = window.offset(record), *words = window.words().data() + begin;
    std::string_view name;
    if (static_cast<Kind>(words[1] & 0xffff) == Kind::kOperator && !state.is_missing(words[2])) {
      name = state.op(words[2]).name;
    }
    const bool lists = name == "dtorch::fused_lists";
    if (static_cast<Kind>(words[1] & 0xffff) == Kind::kRedistribute) {
      // All workers have to run the same, and one of them may lack a value that the others have.
      region->fused.clear();
      region->written.clear();
      return;
    }
    for (uint32_t w = begin; w < begin + window.length(record); ++w) {
      if (!is_slot(window.kind(w))) continue;
      const uint32_t tensor = region->stretch.tensors[window.tensor(w)];
      const bool is_use = window.kind(w) == WordKind::kUse || window.kind(w) == WordKind::kUsePayload;
      if (!is_use) {
        made.insert(tensor);
      } else if ((lists || name == "dtorch::fused" || name == "dtorch::fused_rows") && made.count(tensor) == 0) {
        (lists ? region->written : region->fused).push_back(tensor);
      }
    }
  }
}

// Puts other records in the place of some. Their tensors are numbered as the plan's; new ones
// follow.
inline void rewrite_plan(WorkerState& state, Reader& reader, uint32_t number) {
  WorkerPlan& plan = known_plan(state, number);
  const auto& window = plan.stretch.window;
  const auto own = read_slots(reader);
  // Those that the program itself may not have called.
  for (uint32_t left = reader.word(); left > 0; --left) {
    const uint32_t op = reader.word();
    define_operator(state, reader, op);
  }
  const auto early_starts = read_early_starts(reader);
  auto sections = read_sections(reader);
  auto slots = plan.slots;
  slots.resize(window.lives().size());  // without those of an earlier rewriting
  slots.insert(slots.end(), own.begin(), own.end());
  const size_t num_tensors = slots.size();
  std::vector<Region> regions;
  std::vector<Span> places;
  uint32_t done = 0;
  while (!reader.done()) {
    Region region;
    region.first = reader.word();
    region.last = reader.word();
    if (region.first < done || region.last <= region.first || region.last > window.num_records()) {
      Reader::fail("a region that the plan does not have");
    }
    done = region.last;
    const uint32_t num_values = reader.word(), num_words = reader.word();
    reader.need(uint64_t{num_values} * 2);
    for (uint32_t i = 0; i < num_values; ++i) {
      const uint32_t from = reader.word();
      region.values.emplace_back(from, reader.word());
    }
    read_records(reader, num_words, &num_tensors, &region.stretch);
    for (const auto& [from, to] : region.values) {
      if (from >= window.words().size() || to >= region.stretch.window.words().size() ||
          is_slot(region.stretch.window.kind(to)) || region.stretch.window.kind(to) == WordKind::kFixed) {
        Reader::fail("a value that the plan does not have");
      }
      if (!plan.stretch.varies[window.record_of(from)]) continue;
      region.stretch.varies[region.stretch.window.record_of(to)] = true;
    }
    std::sort(region.values.begin(), region.values.end());
    note_fused(state, &region);
    places.push_back({region.first, region.last});
    regions.push_back(std::move(region));
  }
  plan.slots = std::move(slots);
  plan.regions = std::move(regions);
  plan.captured.clear();
  plan.graph_spans.set_regions(std::move(places));
  plan.early_starts.clear();
  for (const auto& early : early_starts) {
    check_place(plan, early.before);
    for (const auto& place : early.redistributions) {
      check_place(plan, place);
      const auto& known = plan.stretch_of(place).window;
      const uint32_t what = known.words()[known.offset(place.record) + 1];
      // Not into an output that there is already.
      if (what != static_cast<uint32_t>(Kind::kRedistribute)) Reader::fail("an early start of what is no redistribution");
    }
  }
  plan.early_starts = early_starts;
  plan.sections.clear();
  for (auto& section : sections) check_section(plan, &section);
  plan.sections = std::move(sections);
}

inline void forget_plan(WorkerState& state, uint32_t number) {
  known_plan(state, number);
  state.plans[number].reset();
}

inline void move_slots(WorkerState& state, Reader& reader) {
  while (!reader.done()) {
    const uint32_t from = reader.word(), to = reader.word();
    state.slot(to);  // may make room
    auto& source = state.known_slot(from);
    auto& target = state.slot(to);
    if (target.state != SlotEntry::State::kEmpty) Reader::fail("a slot that takes two tensors");
    target = std::move(source);
    source = SlotEntry();
  }
}

// Whether the record's numbers have not changed before.
inline bool set_value(Stretch& stretch, uint32_t word, uint32_t value) {
  const WordKind kind = stretch.window.kind(word);
  if (kind != WordKind::kValue && kind != WordKind::kValuePayload) Reader::fail("a change of what makes the plan");
  auto& known = stretch.window.words()[word];
  known = (known & ~varying(kind)) | (value & varying(kind));
  const uint32_t record = stretch.window.record_of(word);
  auto& changed = stretch.operators[record];
  if (changed.state == BoundOperator::State::kBound) changed.state = BoundOperator::State::kStale;
  if (stretch.varies[record]) return false;
  stretch.varies[record] = true;
  return true;
}

inline void set_value(WorkerPlan& plan, uint64_t word, uint32_t value) {
  if (word >= plan.stretch.window.words().size()) Reader::fail("a change beyond the end of the plan");
  if (set_value(plan.stretch, static_cast<uint32_t>(word), value)) {
    plan.graph_spans.note_change(plan.stretch.window.record_of(static_cast<uint32_t>(word)));
  }
  for (auto& region : plan.regions) {
    auto copy = std::lower_bound(region.values.begin(), region.values.end(),
                                 std::pair(static_cast<uint32_t>(word), 0u));
    for (; copy != region.values.end() && copy->first == word; ++copy) {
      if (set_value(region.stretch, copy->second, value)) plan.is_divided = false;
    }
  }
}

// Takes in what has changed since the last run.
inline void update_plan(WorkerPlan& plan, Reader& reader) {
  const uint32_t num_slots = reader.word();
  reader.need(uint64_t{num_slots} * 2);
  for (uint32_t i = 0; i < num_slots; ++i) {
    const uint32_t tensor = reader.word(), slot = reader.word();
    if (tensor >= plan.slots.size()) Reader::fail("a tensor that the plan does not have");
    if (slot >= kMaxSlots) Reader::fail("a slot number beyond the last");
    plan.slots[tensor] = slot;
  }
  while (!reader.done()) {
    const uint64_t first = reader.word();
    const uint32_t length = reader.word() >> 24;
    const uint32_t repeats_and_stride = reader.word();
    const uint32_t repeats = repeats_and_stride >> 16, stride = repeats_and_stride & 0xffff;
    reader.need(length);
    const uint32_t* values = reader.position();
    for (uint32_t i = 0; i < length; ++i) reader.word();
    for (uint32_t k = 0; k < repeats; ++k) {
      for (uint32_t i = 0; i < length; ++i) set_value(plan, first + uint64_t{k} * stride + i, values[i]);
    }
  }
}

// Writes a record out with this run's slots, as a batch would have it.
inline Reader written_record(WorkerPlan& plan, const Stretch& stretch, uint32_t record) {
  const auto& window = stretch.window;
  const uint32_t begin = window.offset(record), length = window.length(record);
  const auto& words = window.words();
  plan.written.assign(words.begin() + begin, words.begin() + begin + length);
  for (uint32_t w = 0; w < length; ++w) {
    const WordKind kind = window.kind(begin + w);
    if (!is_slot(kind)) continue;
    const uint32_t slot = plan.slots[stretch.tensors[window.tensor(begin + w)]];
    plan.written[w] = (plan.written[w] & ~varying(kind)) | slot;
  }
  return Reader::record(plan.written.data(), plan.written.data() + length);
}

}  // namespace dtorch
