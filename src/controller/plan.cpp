#include "controller/plan.h"

#include <algorithm>
#include <cstring>

namespace dtorch {
namespace {

// A run of changed words, which may come again at equal distances: a scalar for each parameter.
struct Patch {
  uint32_t word;
  uint32_t length;
  uint32_t repeats = 1;
  uint32_t stride = 0;
};

constexpr uint32_t kMostLength = 255, kMostRepeats = 0xffff, kMostStride = 0xffff;

// Whether `next` only goes on with what `patch` says.
bool continues(const std::vector<uint32_t>& words, const Patch& patch, const Patch& next) {
  if (next.length != patch.length || patch.repeats == kMostRepeats) return false;
  const uint32_t stride = next.word - (patch.word + (patch.repeats - 1) * patch.stride);
  if (stride > kMostStride || (patch.repeats > 1 && stride != patch.stride)) return false;
  return std::memcmp(&words[next.word], &words[patch.word], patch.length * 4) == 0;
}

void add(const std::vector<uint32_t>& words, const Patch& next, std::vector<Patch>* patches) {
  if (!patches->empty() && continues(words, patches->back(), next)) {
    auto& patch = patches->back();
    patch.stride = next.word - (patch.word + (patch.repeats - 1) * patch.stride);
    ++patch.repeats;
  } else {
    patches->push_back(next);
  }
}

void begin_record(Kind kind, uint32_t number, std::vector<uint32_t>* record) {
  *record = {0, static_cast<uint32_t>(kind), number, 0};
}

}  // namespace

uint32_t Plan::num_temporaries(const Window& window) {
  uint32_t count = 0;
  for (const auto& life : window.lives()) count += life.is_temporary();
  return count;
}

Plan::Plan(uint32_t number, Window window, std::vector<uint32_t> own_slots, bool for_graphs)
    : number_(number), window_(std::move(window)), for_graphs_(for_graphs), own_slots_(std::move(own_slots)) {
  size_t next = 0;
  for (const auto& life : window_.lives()) {
    own_slot_.push_back(life.is_temporary() ? own_slots_[next++] : Window::kNone);
    told_.push_back(life.slot);
  }
  slots_ = told_;
}

std::vector<uint32_t> Plan::definition() const {
  std::vector<uint32_t> record;
  begin_record(Kind::kDefinePlan, number_, &record);
  record.push_back(static_cast<uint32_t>(own_slots_.size()));
  record.insert(record.end(), own_slots_.begin(), own_slots_.end());
  record.insert(record.end(), window_.words().begin(), window_.words().end());
  record[0] = static_cast<uint32_t>(record.size());
  return record;
}

std::vector<uint32_t> Plan::rewrite(const std::vector<uint32_t>& own_slots,
                                    const std::vector<uint32_t>& operators,
                                    const std::vector<uint32_t>& regions) {
  std::vector<uint32_t> record;
  begin_record(Kind::kRewritePlan, number_, &record);
  record.push_back(static_cast<uint32_t>(own_slots.size()));
  record.insert(record.end(), own_slots.begin(), own_slots.end());
  record.insert(record.end(), operators.begin(), operators.end());
  record.insert(record.end(), regions.begin(), regions.end());
  record[0] = static_cast<uint32_t>(record.size());
  own_slots_.insert(own_slots_.end(), own_slots.begin(), own_slots.end());
  regions_.clear();
  for (size_t at = 0; at < regions.size(); at += 4 + 2 * regions[at + 2] + regions[at + 3]) {
    regions_.push_back({regions[at], regions[at + 1]});
    // The region's values are those of now.
    for (uint32_t i = 0; i < regions[at + 2]; ++i) {
      const uint32_t from = regions[at + 4 + 2 * i], to = regions[at + 5 + 2 * i];
      auto& word = record[record.size() - regions.size() + at + 4 + 2 * regions[at + 2] + to];
      const uint32_t bits = varying(window_.kind(from));
      word = (word & ~bits) | (window_.words()[from] & bits);
    }
  }
  graph_spans_.set_regions(regions_);
  return record;
}

uint32_t Plan::num_ready() {
  const uint32_t matched = num_matched();
  const auto ready = [&](const std::vector<Span>& wholes) {
    for (const auto& [first, last] : wholes) {
      if (first >= matched) break;
      // One that workers have begun without the rest of it has to go on as it is.
      if (matched < last && first >= told_records_) return first;
    }
    return matched;
  };
  return std::min(ready(regions_), for_graphs_ ? ready(graph_spans_.find(window_)) : matched);
}

void Plan::begin() {
  records_.clear();
  differs_.clear();
  changed_.clear();
  told_records_ = 0;
  if (moved_) owners_.clear();
  moved_ = false;
}

bool Plan::match(const uint32_t* record) {
  const uint32_t number = num_matched();
  const uint32_t begin = window_.offset(number), length = window_.length(number);
  const uint32_t* known = window_.words().data() + begin;
  if (record[0] != length) return false;
  const bool same = std::memcmp(record, known, length * 4) == 0;
  if (!same || moved_) {
    for (uint32_t w = 0; w < length; ++w) {
      if (!match_word(number, begin + w, record[w])) return false;
    }
    if (moved_ && static_cast<Kind>(record[1] & 0xffff) == Kind::kFree) owners_.erase(record[2]);
  }
  records_.push_back(record);
  differs_.push_back(!same);
  return true;
}

bool Plan::match_word(uint32_t record, uint32_t word, uint32_t value) {
  const WordKind kind = window_.kind(word);
  const uint32_t known = window_.words()[word];
  if ((value ^ known) & ~varying(kind)) return false;
  if (!is_slot(kind)) return true;
  const uint32_t tensor = window_.tensor(word), slot = value & varying(kind);
  if (word != window_.lives()[tensor].first) return slots_[tensor] == slot;
  if (!moved_ && slots_[tensor] != slot) {
    moved_ = true;
    note_owners(record, word);
  }
  return !moved_ || bind(tensor, slot, record);
}

// Notes which slots are taken by tensors that the run has named so far.
void Plan::note_owners(uint32_t record, uint32_t word) {
  owners_.clear();
  for (uint32_t tensor = 0; tensor < slots_.size(); ++tensor) {
    const auto& life = window_.lives()[tensor];
    if (life.first >= word) break;  // they are numbered in this order
    if (life.freed == Window::kNone || life.freed >= record) owners_[slots_[tensor]] = tensor;
  }
}

// Two tensors in one slot would be another graph.
bool Plan::bind(uint32_t tensor, uint32_t slot, uint32_t record) {
  const auto [owner, is_new] = owners_.try_emplace(slot, tensor);
  if (!is_new && owner->second != tensor) return false;
  slots_[tensor] = slot;
  if (own_slot_[tensor] == Window::kNone && told_[tensor] != slot) changed_.push_back(tensor);
  return true;
}

std::vector<uint32_t> Plan::replay(uint32_t last) {
  std::vector<uint32_t> message;
  begin_record(Kind::kReplay, number_, &message);
  message.push_back(told_records_);
  message.push_back(last);
  message.push_back(static_cast<uint32_t>(changed_.size()));
  for (uint32_t tensor : changed_) {
    message.push_back(tensor);
    message.push_back(slots_[tensor]);
    told_[tensor] = slots_[tensor];
  }
  changed_.clear();
  std::vector<Patch> patches;
  auto& words = window_.words();
  for (uint32_t r = told_records_; r < last; ++r) {
    if (!differs_[r]) continue;
    const uint32_t begin = window_.offset(r), length = window_.length(r);
    const uint32_t* record = records_[r];
    for (uint32_t w = 0; w < length;) {
      uint32_t run = 0;
      while (w + run < length && run < kMostLength && !is_slot(window_.kind(begin + w + run)) &&
             record[w + run] != words[begin + w + run]) {
        words[begin + w + run] = record[w + run];
        ++run;
      }
      if (run > 0) {
        add(words, {begin + w, run}, &patches);
        if (for_graphs_) graph_spans_.note_change(r);
        w += run;
      } else {
        words[begin + w] = record[w];
        ++w;
      }
    }
  }
  if (for_graphs_) graph_spans_.note_message(window_, {told_records_, last});
  for (const auto& patch : patches) {
    message.push_back(patch.word);
    message.push_back(patch.length << 24);
    message.push_back(patch.repeats << 16 | patch.stride);
    for (uint32_t i = 0; i < patch.length; ++i) message.push_back(words[patch.word + i]);
  }
  message[0] = static_cast<uint32_t>(message.size());
  told_records_ = last;
  return message;
}

Plan::Moves Plan::leave() {
  Moves moves;
  for (uint32_t tensor = 0; tensor < slots_.size(); ++tensor) {
    const auto& life = window_.lives()[tensor];
    if (life.defined >= told_records_) continue;  // or comes from outside
    if (life.freed < told_records_) continue;
    if (own_slot_[tensor] != Window::kNone) moves.emplace_back(own_slot_[tensor], slots_[tensor]);
  }
  settle();
  return moves;
}

bool Plan::take_over(const Plan& other, Moves* moves) {
  begin();
  for (const uint32_t* record : other.records_) {
    if (is_complete() || !match(record)) {
      settle();
      return false;
    }
  }
  // The values of what is done already stay as workers have them; the slots are told.
  auto& words = window_.words();
  for (uint32_t r = 0; r < num_matched(); ++r) {
    for (uint32_t w = window_.offset(r); w < window_.offset(r + 1); ++w) {
      if (is_slot(window_.kind(w))) words[w] = records_[r][w - window_.offset(r)];
    }
  }
  told_records_ = num_matched();
  for (uint32_t tensor = 0; tensor < slots_.size(); ++tensor) {
    const auto& life = window_.lives()[tensor];
    if (life.defined >= told_records_ || life.freed < told_records_) continue;
    if (other.place(tensor) != place(tensor)) moves->emplace_back(other.place(tensor), place(tensor));
  }
  return true;
}

// After a run that did not reach the end: the words name each tensor by one slot again, the one
// that workers know.
void Plan::settle() {
  for (uint32_t tensor = 0; tensor < slots_.size(); ++tensor) {
    if (own_slot_[tensor] == Window::kNone) slots_[tensor] = told_[tensor];
  }
  auto& words = window_.words();
  for (uint32_t w = 0; w < words.size(); ++w) {
    const WordKind kind = window_.kind(w);
    if (is_slot(kind)) words[w] = (words[w] & ~varying(kind)) | slots_[window_.tensor(w)];
  }
}

}  // namespace dtorch
