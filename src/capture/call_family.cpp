#include "capture/call_family.h"

#include <c10/util/flat_hash_map.h>

namespace dtorch {
namespace {

constexpr size_t kMaxFamilies = 20'000;
// A family that needs more is one of sizes that have little in common.
constexpr size_t kMaxFormulas = 8, kMaxFailures = 2;
// A formula costs as much as some ten calls that miss. The parameters of a model are a few sizes
// close together, that never come again: a size is worth one after so many operators of others, or
// so many sizes.
constexpr uint64_t kFewOperators = 32;
constexpr size_t kFewSizes = 4;

struct Known {
  std::vector<int64_t> values;  // of the call it was worked out for
  std::vector<bool> varies;
  FamilyFormula formula;
  std::unique_ptr<CallEntry> entry;  // all that does not follow from sizes
};

struct Noted {
  std::vector<int64_t> values;
  std::unique_ptr<CallEntry> entry;
};

struct Family {
  c10::SmallVector<uint64_t, 48> words;
  std::vector<Noted> noted;  // the first call and the last
  std::vector<bool> varies;  // which values were seen to
  std::vector<Known> known;
  size_t num_failures = 0, num_misses = 0;
  uint64_t last_miss = 0;  // as a count of operators
  std::unique_ptr<Family> next;  // another family of the same hash
};

ska::flat_hash_map<uint64_t, std::unique_ptr<Family>>& families() {
  static auto* map = new ska::flat_hash_map<uint64_t, std::unique_ptr<Family>>;
  return *map;
}

Family* find_family(const CallFamily& family) {
  auto found = families().find(family.hash());
  if (found == families().end()) return nullptr;
  Family* candidate = found->second.get();
  while (candidate != nullptr && candidate->words != family.words) candidate = candidate->next.get();
  return candidate;
}

std::unique_ptr<CallEntry> copy_of(const CallEntry& entry) {
  auto copy = std::make_unique<CallEntry>();
  copy->outputs = entry.outputs;
  copy->moves = entry.moves;
  copy->local_sizes = entry.local_sizes;
  copy->local_strides = entry.local_strides;
  copy->decomposition = entry.decomposition;
  return copy;
}

bool assign(const std::vector<SizeProgram>& programs, c10::ArrayRef<int64_t> values,
            c10::SmallVector<int64_t, 5>* results) {
  results->clear();
  for (const auto& program : programs) {
    const auto result = program.evaluate(values);
    if (!result) return false;
    results->push_back(*result);
  }
  return true;
}

// The entry for these values; null where the formula does not hold for them.
std::unique_ptr<CallEntry> entry_for(const Known& known, const std::vector<int64_t>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!known.varies[i] && values[i] != known.values[i]) return nullptr;
  }
  for (const auto& condition : known.formula.conditions) {
    const auto holds = condition.evaluate(values);
    if (!holds || *holds == 0) return nullptr;
  }
  auto entry = copy_of(*known.entry);
  auto formula = known.formula.outputs.begin();
  for (auto& output : entry->outputs) {
    for (auto& meta : output.tensors) {
      const auto offset = formula->offset.evaluate(values);
      if (!offset || !assign(formula->sizes, values, &meta.sizes) ||
          !assign(formula->strides, values, &meta.strides)) {
        return nullptr;
      }
      for (int64_t size : meta.sizes) {
        if (size < 0) return nullptr;
      }
      meta.offset = *offset;
      ++formula;
    }
  }
  return entry;
}

bool same(const InputMove& a, const InputMove& b) {
  return a.input == b.input && a.from == b.from && a.to == b.to && a.restore == b.restore;
}

bool same(const TensorMeta& a, const TensorMeta& b) {
  return a.sizes == b.sizes && a.strides == b.strides && a.offset == b.offset &&
         a.dtype == b.dtype && a.sharding == b.sharding && a.conjugate == b.conjugate &&
         a.negative == b.negative;
}

bool same(const OutputMeta& a, const OutputMeta& b) {
  return a.kind == b.kind && a.constant == b.constant &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const auto& x, const auto& y) { return same(x, y); });
}

bool same(const CallEntry& a, const CallEntry& b) {
  const auto equal = [](const auto& x, const auto& y) { return same(x, y); };
  return std::equal(a.outputs.begin(), a.outputs.end(), b.outputs.begin(), b.outputs.end(), equal) &&
         std::equal(a.moves.begin(), a.moves.end(), b.moves.begin(), b.moves.end(), equal) &&
         a.local_sizes == b.local_sizes && a.local_strides == b.local_strides &&
         (a.decomposition == nullptr) == (b.decomposition == nullptr);
}

// Whether there is a formula for each tensor of the entry, of as many dims.
bool fits(const FamilyFormula& formula, const CallEntry& entry) {
  size_t next = 0;
  for (const auto& output : entry.outputs) {
    for (const auto& meta : output.tensors) {
      if (next == formula.outputs.size()) return false;
      const auto& given = formula.outputs[next++];
      if (given.sizes.size() != meta.sizes.size() || given.strides.size() != meta.strides.size()) {
        return false;
      }
    }
  }
  return next == formula.outputs.size();
}

}  // namespace

void CallFamily::add_value(int64_t value) {
  values.push_back(value);
  words.push_back(value >= 2 ? mark(Mark::kOpen) : static_cast<uint64_t>(value));
}

size_t CallFamily::add_tensor(const CallKey& key, size_t at) {
  const uint64_t word = key.words[at++];
  words.push_back(word);
  if (mark_of(word) != Mark::kTensor || (word & kHostBit)) return at;
  if (word & (kConjugateBit | kNegativeBit)) is_open = false;
  for (size_t i = 0; i < 2 * dims_of(word); ++i) add_value(static_cast<int64_t>(key.words[at++]));
  return at;
}

size_t CallFamily::add_argument(const CallKey& key, size_t at, bool is_size) {
  const uint64_t word = key.words[at++];
  words.push_back(word);
  size_t following = 0;
  switch (mark_of(word)) {
    case Mark::kInt: following = 1; break;
    case Mark::kInts: following = payload_of(word); break;
    case Mark::kDouble: case Mark::kText: following = 1; is_size = false; break;
    case Mark::kComplex: following = 2; is_size = false; break;
    case Mark::kDoubles: case Mark::kBools: case Mark::kScalars:
      following = payload_of(word);
      is_size = false;
      break;
    default: break;
  }
  for (size_t i = 0; i < following; ++i, ++at) {
    if (is_size) {
      add_value(static_cast<int64_t>(key.words[at]));
    } else {
      words.push_back(key.words[at]);
    }
  }
  return at;
}

CallFamily::CallFamily(const CallKey& key, const OperatorInfo& info) {
  // as_strided sees a memory of which the key says nothing.
  is_open = info.name.starts_with("aten::") && !info.absolute_offset;
  words.append(key.words.begin(), key.words.begin() + 2);
  size_t at = 2;
  if (key.left_out.second != 0) {
    words.push_back(mark(Mark::kExtent));
    add_value(static_cast<int64_t>(payload_of(key.words[at++])));
  }
  for (size_t a = 0; a < info.arguments.size(); ++a) {
    if (a >= key.left_out.first && a < key.left_out.second) continue;
    switch (info.arguments[a].kind) {
      case ArgumentKind::kTensor: at = add_tensor(key, at); break;
      case ArgumentKind::kTensorList:
      case ArgumentKind::kOptionalTensorList: {
        const uint64_t word = key.words[at++];
        words.push_back(word);
        const size_t count = mark_of(word) == Mark::kTensors ? payload_of(word) : 0;
        for (size_t i = 0; i < count; ++i) at = add_tensor(key, at);
        break;
      }
      case ArgumentKind::kGenerator: break;
      default: at = add_argument(key, at, info.arguments[a].is_size);
    }
  }
  TORCH_INTERNAL_ASSERT(at == key.words.size());
}

std::unique_ptr<CallEntry> find_in_family(const CallFamily& family) {
  if (!family.is_open) return nullptr;
  const Family* found = find_family(family);
  if (found == nullptr) return nullptr;
  for (const auto& known : found->known) {
    if (auto entry = entry_for(known, family.values)) return entry;
  }
  return nullptr;
}

std::optional<FamilyQuestion> note_in_family(const CallFamily& family, const CallEntry& entry,
                                             uint64_t num_operators) {
  if (!family.is_open) return std::nullopt;
  Family* found = find_family(family);
  if (found == nullptr) {
    if (families().size() >= kMaxFamilies) families().clear();
    auto& place = families()[family.hash()];
    auto fresh = std::make_unique<Family>();
    fresh->words = family.words;
    fresh->varies.resize(family.values.size());
    fresh->next = std::move(place);
    place = std::move(fresh);
    found = place.get();
  }
  std::optional<FamilyQuestion> question;
  if (!found->noted.empty() && found->known.size() < kMaxFormulas &&
      found->num_failures < kMaxFailures) {
    const auto& before = found->noted.back().values;
    for (size_t i = 0; i < before.size(); ++i) {
      if (before[i] != family.values[i]) found->varies[i] = true;
    }
    const bool is_worth_it = num_operators - found->last_miss >= kFewOperators ||
                             found->num_misses + 1 >= kFewSizes;
    // Equal values: what was known of the calls was forgotten, and is worked out again.
    if (is_worth_it && before != family.values) question = FamilyQuestion{before, found->varies};
  }
  found->last_miss = num_operators;
  ++found->num_misses;
  if (found->noted.size() == 2) found->noted.pop_back();
  found->noted.push_back({family.values, copy_of(entry)});
  return question;
}

void keep_formula(const CallFamily& family, const FamilyQuestion& question,
                  std::optional<FamilyFormula> formula, const CallEntry& entry) {
  Family* found = find_family(family);
  if (found == nullptr) return;
  if (formula && fits(*formula, entry)) {
    Known known{family.values, question.varies, *std::move(formula), copy_of(entry)};
    const auto own = entry_for(known, family.values);
    bool is_right = own != nullptr && same(*own, entry);
    for (const auto& noted : found->noted) {
      const auto made = entry_for(known, noted.values);
      is_right = is_right && (made == nullptr || same(*made, *noted.entry));
    }
    if (is_right) {
      found->known.push_back(std::move(known));
      return;
    }
  }
  ++found->num_failures;
}

void forget_families() { families().clear(); }

}  // namespace dtorch
