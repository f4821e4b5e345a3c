// A window that this worker has been told, and how to run it again.
//
// An operator's arguments are decoded once, but for its tensors, and again where the controller
// says that one has changed. What is out of the ordinary (a failed input, random numbers, another
// kind of record) goes the general way: the record is written out and executed as if it had come
// by itself.
#pragma once

#include <string_view>
#include <unordered_set>

#include "wire/window.h"
#include "worker/call.h"
#include "worker/definitions.h"
#include "worker/pending.h"
#include "worker/record_note.h"

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

// A record of a plan as it runs. region: 0 for one of the program's own, else 1 and more.
struct Place {
  uint32_t region, record;
};

// Redistributions that may begin before another record runs: together, where they can.
struct EarlyStart {
  Place before;
  std::vector<Place> redistributions;
};

struct WorkerPlan {
  Stretch stretch;  // the program's own records
  std::vector<Region> regions;  // in order
  std::vector<EarlyStart> early_starts;  // in the order of where they begin

  Stretch& stretch_of(const Place& place) {
    return place.region == 0 ? stretch : regions[place.region - 1].stretch;
  }
  // Later ones are larger.
  uint64_t position(const Place& place) const {
    if (place.region == 0) return uint64_t{place.record} << 32;
    return uint64_t{regions[place.region - 1].first} << 32 | place.record;
  }

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

inline void check_place(WorkerPlan& plan, const Place& place) {
  if (place.region > plan.regions.size() || place.record >= plan.stretch_of(place).window.num_records()) {
    Reader::fail("a place that the plan does not have");
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
      } else if ((lists || name == "dtorch::fused") && made.count(tensor) == 0) {
        (lists ? region->written : region->fused).push_back(tensor);
      }
    }
  }
}

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
  auto slots = plan.slots;
  slots.resize(window.lives().size());  // without those of an earlier rewriting
  slots.insert(slots.end(), own.begin(), own.end());
  const size_t num_tensors = slots.size();
  std::vector<Region> regions;
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
    }
    std::sort(region.values.begin(), region.values.end());
    note_fused(state, &region);
    regions.push_back(std::move(region));
  }
  plan.slots = std::move(slots);
  plan.regions = std::move(regions);
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

inline void set_value(Stretch& stretch, uint32_t word, uint32_t value) {
  const WordKind kind = stretch.window.kind(word);
  if (kind != WordKind::kValue && kind != WordKind::kValuePayload) Reader::fail("a change of what makes the plan");
  auto& known = stretch.window.words()[word];
  known = (known & ~varying(kind)) | (value & varying(kind));
  auto& changed = stretch.operators[stretch.window.record_of(word)];
  if (changed.state == BoundOperator::State::kBound) changed.state = BoundOperator::State::kStale;
}

inline void set_value(WorkerPlan& plan, uint64_t word, uint32_t value) {
  if (word >= plan.stretch.window.words().size()) Reader::fail("a change beyond the end of the plan");
  set_value(plan.stretch, static_cast<uint32_t>(word), value);
  for (auto& region : plan.regions) {
    auto copy = std::lower_bound(region.values.begin(), region.values.end(),
                                 std::pair(static_cast<uint32_t>(word), 0u));
    for (; copy != region.values.end() && copy->first == word; ++copy) {
      set_value(region.stretch, copy->second, value);
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

// Decodes what stays the same from run to run.
inline void bind_operator(WorkerState& state, const Stretch& stretch, uint32_t record, BoundOperator* bound) {
  *bound = BoundOperator();
  bound->state = BoundOperator::State::kGeneral;
  const auto& words = stretch.window.words();
  const uint32_t* at = words.data() + stretch.window.offset(record);
  Reader reader = Reader::record(at, at + stretch.window.length(record));
  const uint32_t count = reader.count() & (kShardedOperator - 1);
  const bool sharded = (reader.count() & kShardedOperator) != 0;
  if (state.is_missing(reader.number())) return;
  const auto& schema = state.op(reader.number()).handle->schema();
  reader.enter();
  reader.word();
  if (count != schema.arguments().size()) return;  // the general way says so
  const auto tensor_at = [&](const uint32_t* word) {
    return stretch.tensors[stretch.window.tensor(static_cast<uint32_t>(word - words.data()))];
  };
  for (uint32_t a = 0; a < count; ++a) {
    const Tag tag = reader.peek();
    uint32_t payload;
    if (tag == Tag::kSlot) {
      const uint32_t* word = reader.position();
      reader.tag(&payload);
      if (payload != kNoSlot) bound->tensors.emplace_back(a, tensor_at(word));
      bound->arguments.emplace_back(at::Tensor());
    } else if (tag == Tag::kSlotList || tag == Tag::kOptionalSlotList) {
      reader.tag(&payload);
      BoundOperator::List list{a, tag == Tag::kOptionalSlotList, {}};
      for (uint32_t i = 0; i < payload; ++i) {
        const uint32_t* word = reader.position();
        list.tensors.push_back(reader.word() == kNoSlot ? Window::kNone : tensor_at(word));
      }
      bound->lists.push_back(std::move(list));
      bound->arguments.emplace_back();
    } else if (tag == Tag::kGenerator || tag == Tag::kShardedGenerator) {
      return;  // its state is set anew by each call
    } else if (tag == Tag::kScalarTensor && schema.arguments()[a].alias_info() != nullptr) {
      return;  // the result may be the very tensor
    } else {
      const Obstacle obstacle = ArgumentDecoder(state, reader).decode(1, &bound->arguments);
      if (obstacle.absent || obstacle.failure) return;
    }
  }
  for (uint32_t r = 0; !reader.done(); ++r) {
    const uint32_t* word = reader.position();
    uint32_t payload;
    const Tag tag = reader.tag(&payload);
    if (tag == Tag::kOutputIgnored) continue;
    BoundOperator::Output output{r, tag == Tag::kOutputList, {}, {}};
    const uint32_t length = output.is_list ? payload : 1;
    for (uint32_t i = 0; i < length; ++i) {
      if (output.is_list) {
        word = reader.position();
        reader.word();
      }
      output.tensors.push_back(tensor_at(word));
      output.shardings.push_back(sharded ? reader.word() : 0);
    }
    bound->outputs.push_back(std::move(output));
  }
  bound->state = BoundOperator::State::kBound;
}

// A list of a plan's tensors as LibTorch takes it: of tensors, or of optional ones. False if one has
// no value. tensor_of: null for one that has none.
template <class Element, class TensorOf>
bool take_list(const std::vector<uint32_t>& numbers, TensorOf&& tensor_of, c10::IValue* list) {
  c10::List<Element> values;
  values.reserve(numbers.size());
  for (uint32_t number : numbers) {
    if (number == Window::kNone) {
      values.push_back(Element());
    } else if (const at::Tensor* value = tensor_of(number)) {
      values.push_back(*value);
    } else {
      return false;
    }
  }
  *list = std::move(values);
  return true;
}

// Puts the tensors among the arguments. False if one has no value.
inline bool take_tensors(WorkerState& state, const WorkerPlan& plan, const BoundOperator& bound) {
  const auto tensor_of = [&](uint32_t number) -> const at::Tensor* {
    const uint32_t slot = plan.slots[number];
    if (slot >= state.slots.size()) return nullptr;
    if (C10_UNLIKELY(state.slots[slot].state == SlotEntry::State::kPending)) state.settle(slot);
    if (state.slots[slot].state != SlotEntry::State::kTensor) return nullptr;
    return &state.slots[slot].tensor;
  };
  state.stack = bound.arguments;
  for (const auto& [argument, number] : bound.tensors) {
    const at::Tensor* value = tensor_of(number);
    if (value == nullptr) return false;
    state.stack[argument] = *value;
  }
  for (const auto& list : bound.lists) {
    auto* place = &state.stack[list.argument];
    if (!(list.optional ? take_list<std::optional<at::Tensor>>(list.tensors, tensor_of, place)
                        : take_list<at::Tensor>(list.tensors, tensor_of, place))) {
      return false;
    }
  }
  return true;
}

inline void put_results(WorkerState& state, const WorkerPlan& plan, const BoundOperator& bound) {
  for (const auto& output : bound.outputs) {
    if (output.returned >= state.stack.size()) Reader::fail("more outputs than the operator returns");
    const auto& value = state.stack[output.returned];
    if (output.is_list ? !value.isTensorList() || value.toListRef().size() != output.tensors.size()
                       : !value.isTensor()) {
      Reader::fail("outputs of another kind than the operator returns");
    }
    for (size_t i = 0; i < output.tensors.size(); ++i) {
      const auto& tensor = output.is_list ? value.toListRef()[i].toTensor() : value.toTensor();
      put_value(state, plan.slots[output.tensors[i]], tensor, output.shardings[i]);
    }
  }
}

// Runs an operator of a plan. False: it has to go the general way.
inline bool run_bound(WorkerState& state, WorkerPlan& plan, Stretch& stretch, uint32_t record) {
  auto& bound = stretch.operators[record];
  if (C10_UNLIKELY(bound.state == BoundOperator::State::kStale)) bind_operator(state, stretch, record, &bound);
  if (bound.state == BoundOperator::State::kGeneral) return false;
  if (C10_UNLIKELY(!state.spoiled.empty()) || C10_UNLIKELY(!take_tensors(state, plan, bound))) {
    state.stack.clear();
    return false;
  }
  const uint32_t* header = stretch.window.words().data() + stretch.window.offset(record);
  state.site = header[3];
  if (state.notes_flight) flight_record().note(header[2], state.site);
  FailurePtr failure;
  if (C10_UNLIKELY(!call_kernel(state, state.op(header[2]), header[kHeaderWords], &failure))) {
    Reader reader = written_record(plan, stretch, record);
    const uint32_t count = reader.count(), number = reader.number();
    reader.enter();
    reader.word();
    const Reader arguments = reader;
    Stack ignored;
    ArgumentDecoder(state, reader).decode(count & (kShardedOperator - 1), &ignored);
    settle_failure(state, arguments, reader, count, number, failure, false);
    return true;
  }
  put_results(state, plan, bound);
  state.stack.clear();
  return true;
}

// Runs one of a plan's records. `general` executes the record that it is given. flags: of its event.
template <class General>
void run_record(WorkerState& state, WorkerPlan& plan, Stretch& stretch, uint32_t record, uint16_t flags,
                General&& general) {
  const uint32_t* words = stretch.window.words().data() + stretch.window.offset(record);
  const auto kind = static_cast<Kind>(words[1] & 0xffff);
  if (kind == Kind::kMark) return;
  RecordNote note(state, flags);
  if (kind == Kind::kOperator && run_bound(state, plan, stretch, record)) {
    return note.end(state, words);
  }
  written_record(plan, stretch, record);
  general(plan.written, flags);
}

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

// Runs a part of a plan: what takes the place of the records in it, where that is all in it.
template <class General>
void replay(WorkerState& state, Reader& reader, uint32_t number, General&& general) {
  WorkerPlan& plan = known_plan(state, number);
  const uint32_t first = reader.word(), last = reader.word();
  if (first > last || last > plan.stretch.window.num_records()) Reader::fail("a part that the plan does not have");
  update_plan(plan, reader);
  auto region = std::lower_bound(plan.regions.begin(), plan.regions.end(), first,
                                 [](const Region& region, uint32_t record) { return region.first < record; });
  const uint64_t before = state.record;
  EarlyStarts early(state, plan, first, last);
  const auto run = [&](Stretch& stretch, const Place& place, uint16_t flags) {
    const uint64_t position = plan.position(place);
    early.reach(position);
    if (!early.take(position)) run_record(state, plan, stretch, place.record, flags, general);
  };
  for (uint32_t record = first; record < last && !state.stopped;) {
    state.record = before + (record - first);
    if (region != plan.regions.end() && region->first == record) {
      const auto number = static_cast<uint32_t>(region - plan.regions.begin()) + 1;
      if (region->last <= last && is_usable(state, plan, *region)) {
        for (uint32_t r = 0; r < region->stretch.window.num_records(); ++r) {
          run(region->stretch, {number, r}, Event::kReplayed | Event::kRewritten);
        }
        record = region->last;
        ++region;
        continue;
      }
      early.leave_out(number);
      ++region;
    }
    run(plan.stretch, {0, record}, Event::kReplayed);
    ++record;
  }
  state.record = before;
}

}  // namespace dtorch
