#include "controller/tracer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "wire/reader.h"

namespace dtorch {
namespace {

constexpr uint32_t kFewestRecords = 6;  // of a plan
// Of a window that no read or step ends.
constexpr uint32_t kShortestCut = 64, kLongest = 4096;
// A loop in a long window ends at a read or step by chance: one of so short a body, seen so often,
// is cut by itself.
constexpr uint32_t kLookForLoop = 512, kLongestBody = 32;
constexpr size_t kMostSeen = 1 << 16, kMostCuts = 1 << 10;
constexpr size_t kMostPlans = 1 << 10, kMostPlanWords = 8 << 20;
constexpr size_t kMostSuccessors = 4, kMostCandidates = 16;

Kind kind_of(const uint32_t* record) { return static_cast<Kind>(record[1] & 0xffff); }

bool is_definition(Kind kind) {
  return kind == Kind::kDefineOperator || kind == Kind::kDefineSite || kind == Kind::kDefineMesh ||
         kind == Kind::kDefineSharding;
}

// After these the client may wait, or begins anew.
bool ends_window(Kind kind) {
  return kind == Kind::kGet || kind == Kind::kSync || kind == Kind::kDescribe || kind == Kind::kMark;
}

uint64_t token_of(const uint32_t* record) {
  Window window;
  try {
    window.append(record, record + record[0]);
  } catch (const WireError&) {
    return 0;
  }
  return window.last_token();
}

}  // namespace

void Tracer::take(const Batch& batch, bool are_fed) {
  batch_ = &batch;
  plain_ = {};
  record_number_ = batch.first_record;
  if (following_ != nullptr) {
    held_.push_back(batch);
  } else {
    unsent_ = batch.first_record;
  }
  for (const uint32_t* record = batch.begin; record < batch.end; record += record[0]) {
    take_record(record);
    ++record_number_;
  }
  send_plain(batch.end);
  if (are_fed) {
    note_holding();
  } else {
    feed();
  }
  batch_ = nullptr;
}

void Tracer::feed() {
  if (following_ != nullptr) send_replay(following_->num_ready());
}

void Tracer::release() {
  if (following_ != nullptr) send_replay(following_->num_matched());
}

void Tracer::take_record(const uint32_t* record) {
  const Kind kind = kind_of(record);
  if (C10_UNLIKELY(is_between_graphs(kind))) return pass(record, kind);
  if (enabled_) {
    if (following_ != nullptr) {
      if (follow(record)) return;
    } else if (at_beginning_) {
      if (C10_UNLIKELY(timeline_.is_on())) window_began_ = steady_ns();
      if (begin_plan(record)) return;
    }
  }
  if (plain_.begin == nullptr) plain_ = {record, 0, false};
  ++plain_.count;
  plain_.communicates |= kind == Kind::kRedistribute;
  if (enabled_) learn(record);
}

// What is between graphs belongs to no window: when it comes may depend on other threads of the
// program. A wait may come in the midst of a plan.
void Tracer::pass(const uint32_t* record, Kind kind) {
  send_plain(record);
  if (kind != Kind::kWait) {
    // Where tensors come or go is a good place to end a window; one that goes must lie where the
    // program has it.
    if (following_ != nullptr && kind == Kind::kExport) {
      send_replay(following_->num_matched());
      leave_plan();
    }
    if (following_ == nullptr && window_.num_records() > 0) finish_window();
  }
  if (following_ != nullptr) send_replay(following_->num_matched());
  Reader reader = Reader::record(record, record + record[0]);
  reader.enter();
  if (kind == Kind::kImport) reader.int_value();
  if (kind != Kind::kExport) {
    sender_.reach(sender_.self, record[1] >> 16, static_cast<uint64_t>(reader.int_value()));
  }
  const Batch batch = batch_->part(record, record + record[0], unsent_, 1);
  ++unsent_;
  sender_.send(sender_.self, &batch, batch.bytes(), false);
}

// ---- following ----------------------------------------------------------------------------------

// The plans that begin with this record, the latest first.
std::vector<uint32_t> Tracer::starting_with(const uint32_t* record) const {
  auto found = by_first_.find(token_of(record));
  if (found == by_first_.end()) return {};
  auto numbers = found->second;
  std::sort(numbers.begin(), numbers.end(), [&](uint32_t a, uint32_t b) {
    return plans_.at(a)->last_used > plans_.at(b)->last_used;
  });
  if (numbers.size() > kMostCandidates) numbers.resize(kMostCandidates);
  return numbers;
}

std::vector<uint32_t> Tracer::successors() const {
  auto previous = plans_.find(previous_);
  return previous == plans_.end() ? std::vector<uint32_t>() : previous->second->successors;
}

bool Tracer::begin_plan(const uint32_t* record) {
  if (plans_.empty() || is_definition(kind_of(record))) return false;
  const auto begins = [&](uint32_t number) {
    auto found = plans_.find(number);
    if (found == plans_.end()) return false;
    following_ = found->second.get();
    following_->begin();
    if (following_->match(record)) return true;
    following_->abandon();
    following_ = nullptr;
    return false;
  };
  // What came next the last time nearly always does again: the record need not be looked into. That a
  // tensor is freed says little of what follows, and nothing where it is known what does.
  const bool says_little = kind_of(record) == Kind::kFree && previous_ != kNoPlan;
  if (std::ranges::none_of(successors(), begins) &&
      (says_little || std::ranges::none_of(starting_with(record), begins))) {
    return false;
  }
  send_plain(record);
  held_.assign(1, *batch_);
  at_beginning_ = false;
  return true;
}

// Takes the record if it is one of a plan's.
bool Tracer::follow(const uint32_t* record) {
  if (!following_->match(record)) {
    send_replay(following_->num_matched());
    if (!switch_plan(record)) {
      leave_plan();
      return false;
    }
  }
  if (following_->is_complete()) finish_plan();
  return true;
}

// Where the program takes another way that it has taken before.
bool Tracer::switch_plan(const uint32_t* record) {
  for (uint32_t number : starting_with(following_->matched()[0])) {
    Plan* plan = plans_.at(number).get();
    if (plan == following_) continue;
    Plan::Moves moves;
    if (!plan->take_over(*following_, &moves)) continue;
    if (!plan->match(record)) {
      plan->abandon();
      continue;
    }
    following_->abandon();
    following_ = plan;
    send_moves(moves);
    return true;
  }
  return false;
}

void Tracer::finish_plan() {
  send_replay(following_->num_matched());
  note_window(ControllerEvent::kReplay, following_->num_records(), following_->number());
  ++counters_.windows;
  ++counters_.replays;
  note_successor(following_->number());
  previous_hash_ = 0;
  stop_following();
  at_beginning_ = true;
}

// The window that has just ended was this plan's.
void Tracer::note_successor(uint32_t number) {
  plans_.at(number)->last_used = ++clock_;
  if (auto previous = plans_.find(previous_); previous != plans_.end()) {
    auto& next = previous->second->successors;
    std::erase(next, number);
    next.insert(next.begin(), number);
    if (next.size() > kMostSuccessors) next.pop_back();
  }
  previous_ = number;
}

void Tracer::stop_following() {
  following_ = nullptr;
  held_.clear();
  for (const auto& waiting : std::exchange(rewrites_, {})) rewrite(waiting);
}

// The rest of the window goes the general way, and the whole may become a plan too.
void Tracer::leave_plan() {
  ++counters_.departures;
  note_now(ControllerEvent::kDeparture, following_->num_matched(), following_->number());
  const auto matched = following_->matched();
  const auto held = std::move(held_);
  send_moves(following_->leave());
  stop_following();
  for (const uint32_t* record : matched) {
    window_.append(record, record + record[0]);
    tokens_.push_back(window_.last_token());
  }
}

// ---- learning -----------------------------------------------------------------------------------

void Tracer::learn(const uint32_t* record) {
  const Kind kind = kind_of(record);
  if (is_definition(kind)) return;
  at_beginning_ = false;
  try {
    window_.append(record, record + record[0]);
    tokens_.push_back(window_.last_token());
  } catch (const WireError&) {
    can_be_plan_ = false;
  }
  const uint32_t records = window_.num_records();
  if (ends_window(kind) || (records >= kShortestCut && cuts_.count(window_.last_token()) > 0)) {
    finish_window();
  } else if (records >= kLongest || (records > 0 && records % kLookForLoop == 0 && is_loop())) {
    choose_cut();
    can_be_plan_ = false;
    finish_window();
  }
}

void Tracer::finish_window() {
  ++counters_.windows;
  note_window(ControllerEvent::kWindow, window_.num_records(), kNoPlan);
  if (can_be_plan_ && window_.num_records() >= kFewestRecords) {
    if (seen_.size() >= kMostSeen) seen_.clear();
    const uint64_t hash = window_.hash();
    const auto [known, is_new] = seen_.try_emplace(hash, kNoPlan);
    if (!is_new && plans_.count(known->second) == 0) {
      known->second = make_plan();
      // One that came right behind itself.
      if (hash == previous_hash_) previous_ = known->second;
    }
    if (plans_.count(known->second) > 0) {
      note_successor(known->second);
    } else {
      previous_ = kNoPlan;
    }
    previous_hash_ = hash;
  } else if (!can_be_plan_) {
    previous_ = kNoPlan;
    previous_hash_ = 0;
  }
  window_.clear();
  tokens_.clear();
  can_be_plan_ = true;
  at_beginning_ = true;
}

// Whether the last records are one short stretch again and again.
bool Tracer::is_loop() const {
  const auto* end = tokens_.data() + tokens_.size();
  for (uint32_t body = 1; body <= kLongestBody; ++body) {
    if (std::equal(end - kLookForLoop + body, end, end - kLookForLoop)) return true;
  }
  return false;
}

// The record that the program comes by most rarely, as far as chance knows.
void Tracer::choose_cut() {
  if (cuts_.size() >= kMostCuts) cuts_.clear();
  // Of a loop, one of its body.
  const size_t from = tokens_.size() > kLookForLoop ? tokens_.size() - kLookForLoop : 0;
  cuts_.insert(*std::min_element(tokens_.begin() + from, tokens_.end()));
}

uint32_t Tracer::make_plan() {
  std::vector<uint32_t> slots(Plan::num_temporaries(window_));
  if (!take_own_slots(&slots)) return kNoPlan;
  const uint32_t number = next_number_++;
  const uint64_t first = token_of(window_.words().data());
  auto plan = std::make_unique<Plan>(number, std::move(window_), std::move(slots), for_graphs_);
  num_words_ += plan->num_words();
  send_message(plan->definition(), 0, 0);
  if (new_plans_.size() >= kMostPlans) new_plans_.pop_front();
  new_plans_.push_back({number, plan->words()});
  by_first_[first].push_back(number);
  plan->last_used = ++clock_;
  plans_[number] = std::move(plan);
  ++counters_.plans;
  note_now(ControllerEvent::kNewPlan, plans_[number]->num_records(), number);
  while (plans_.size() > kMostPlans || (num_words_ > kMostPlanWords && plans_.size() > 1)) {
    const auto oldest = std::min_element(plans_.begin(), plans_.end(), [](const auto& a, const auto& b) {
      return a.second->last_used < b.second->last_used;
    });
    forget_plan(oldest->first);
  }
  return number;
}

// False: there are not as many slots.
bool Tracer::take_own_slots(std::vector<uint32_t>* slots) {
  for (auto& slot : *slots) {
    if (own_slots_.empty()) {
      // Not one that the program has had: records of that may still be in the queue.
      slot = queue_.reserve_slot();
      if (slot == kNoSlot) return false;
    } else {
      slot = own_slots_.back();
      own_slots_.pop_back();
    }
  }
  return true;
}

bool Tracer::take_new_plan(NewPlan* plan) {
  if (new_plans_.empty()) return false;
  *plan = std::move(new_plans_.front());
  new_plans_.pop_front();
  return true;
}

void Tracer::rewrite(const Rewrite& rewrite) {
  auto found = plans_.find(rewrite.number);
  if (found == plans_.end()) return;
  Plan* plan = found->second.get();
  if (plan == following_) {
    rewrites_.push_back(rewrite);
    return;
  }
  std::vector<uint32_t> slots(rewrite.num_own_slots);
  if (!take_own_slots(&slots)) return;
  send_message(plan->rewrite(slots, rewrite.operators, rewrite.regions), 0, 0);
}

void Tracer::forget_plan(uint32_t number) {
  const auto found = plans_.find(number);
  Plan& plan = *found->second;
  own_slots_.insert(own_slots_.end(), plan.own_slots().begin(), plan.own_slots().end());
  num_words_ -= plan.num_words();
  auto first = by_first_.find(token_of(plan.first_record()));
  std::erase(first->second, number);
  if (first->second.empty()) by_first_.erase(first);
  send_message({kHeaderWords, static_cast<uint32_t>(Kind::kForgetPlan), number, 0}, 0, 0);
  plans_.erase(found);
}

// ---- observation --------------------------------------------------------------------------------

void Tracer::note_window(ControllerEvent kind, uint32_t records, uint32_t plan) {
  if (C10_LIKELY(!timeline_.is_on())) return;
  Event event;
  event.begin = window_began_;
  event.end = steady_ns();
  event.record = record_number_;
  event.kind = static_cast<uint16_t>(kind);
  event.number = plan;
  event.amounts[0] = records;
  timeline_.note(event);
}

void Tracer::note_now(ControllerEvent kind, uint32_t records, uint32_t plan) {
  const int64_t began = std::exchange(window_began_, steady_ns());
  note_window(kind, records, plan);
  window_began_ = began;
}

// ---- sending ------------------------------------------------------------------------------------

void Tracer::send_plain(const uint32_t* end) {
  if (plain_.begin == nullptr) return;
  const Batch batch = batch_->part(plain_.begin, end, unsent_, plain_.count);
  const bool communicates = plain_.communicates;
  unsent_ += plain_.count;
  plain_ = {};
  sender_.send(sender_.self, &batch, batch.bytes(), communicates);
}

// Has workers run what was matched, up to this record.
void Tracer::send_replay(uint32_t last) {
  const uint32_t first = following_->num_told();
  if (last > first) {
    uint64_t bytes = 0;
    bool communicates = false;
    for (uint32_t r = first; r < last; ++r) {
      const uint32_t* record = following_->matched()[r];
      bytes += uint64_t{record[0]} * 4;
      communicates |= kind_of(record) == Kind::kRedistribute;
    }
    send_message(following_->replay(last), last - first, bytes, communicates);
    counters_.replayed_records += last - first;
  }
  note_holding();
}

void Tracer::note_holding() {
  holding_.store(following_ != nullptr && following_->num_matched() > following_->num_told(),
                 std::memory_order_relaxed);
}

void Tracer::send_moves(const Plan::Moves& moves) {
  if (moves.empty()) return;
  std::vector<uint32_t> message = {0, static_cast<uint32_t>(Kind::kMoveSlots), 0, 0};
  for (const auto& [from, to] : moves) message.insert(message.end(), {from, to});
  message[0] = static_cast<uint32_t>(message.size());
  send_message(message, 0, 0);
}

void Tracer::send_message(const std::vector<uint32_t>& message, uint32_t records, uint64_t program_bytes,
                          bool communicates) {
  Chunk* chunk = Chunk::create(static_cast<uint32_t>(message.size()));
  std::memcpy(chunk->words(), message.data(), message.size() * 4);
  const Batch batch(chunk, chunk->words(), chunk->words() + message.size(), unsent_, records);
  chunk->release();
  unsent_ += records;
  sender_.send(sender_.self, &batch, program_bytes, communicates);
}

}  // namespace dtorch
