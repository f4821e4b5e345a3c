#include "wire/window.h"

#include <algorithm>

#include "wire/mix.h"
#include "wire/reader.h"

namespace dtorch {
namespace {

// Walks a record and notes the kind of each word that is not fixed.
class Classifier {
 public:
  Classifier(const uint32_t* record, const uint32_t* end, WordKind* kinds)
      : reader_(Reader::record(record, end)), record_(record), kinds_(kinds) {}

  void classify() {
    const Kind kind = reader_.kind();
    const uint32_t count = reader_.count();
    reader_.enter();
    switch (kind) {
      case Kind::kOperator: {
        reader_.word();
        const bool sharded = (count & kShardedOperator) != 0;
        for (uint32_t i = 0; i < (count & (kShardedOperator - 1)); ++i) argument();
        while (!reader_.done()) output(sharded);
        return;
      }
      case Kind::kFree: kinds_[2] = WordKind::kUse; break;
      case Kind::kUpload:
        kinds_[2] = WordKind::kDefine;
        reader_.dtype();
        reader_.int_list();
        reader_.int_list();
        reader_.word();
        if (reader_.peek() == Tag::kString) {
          const auto* at = reader_.position();
          reader_.string();
          values(at + 1, reader_.position());
        } else {
          value();
        }
        break;
      case Kind::kGet:
      case Kind::kDescribe: kinds_[2] = WordKind::kUse; [[fallthrough]];
      case Kind::kSync:
        for (int i = 0; i < 3; ++i) value();
        break;
      case Kind::kRedistribute:
        kinds_[2] = WordKind::kUse;
        mark(count != 0 ? WordKind::kUsePayload : WordKind::kDefinePayload);
        reader_.expect(Tag::kOutput);
        break;
      case Kind::kPythonKernel: {
        reader_.string();
        const auto* at = reader_.position();
        reader_.string();
        values(at + 1, reader_.position());
        for (uint32_t i = 0; i < count; ++i) {
          mark(WordKind::kDefinePayload);
          reader_.expect(Tag::kOutput);
          reader_.dtype();
          reader_.int_list();
          reader_.word();
        }
        break;
      }
      case Kind::kMark: break;
      case Kind::kMoveSlots:  // a pass may put them into a plan
        while (!reader_.done()) {
          mark(WordKind::kUse);
          reader_.word();
          mark(WordKind::kDefine);
          reader_.word();
        }
        break;
      default: Reader::fail("a record that can't be part of a window");
    }
  }

 private:
  void mark(WordKind kind) { kinds_[reader_.position() - record_] = kind; }
  void values(const uint32_t* from, const uint32_t* to) {
    std::fill(kinds_ + (from - record_), kinds_ + (to - record_), WordKind::kValue);
  }
  void raw_values(uint64_t words) {
    reader_.need(words);
    for (; words > 0; --words) {
      mark(WordKind::kValue);
      reader_.word();
    }
  }
  void slot_word(WordKind kind) {
    if (reader_.left() > 0 && *reader_.position() != kNoSlot) mark(kind);
    reader_.word();
  }
  void raw_fixed(uint64_t words) {
    reader_.need(words);
    for (; words > 0; --words) reader_.word();
  }

  // A number behind its tag.
  void value() {
    const Tag tag = reader_.peek();
    if (tag == Tag::kSmallInt || tag == Tag::kBool) mark(WordKind::kValuePayload);
    reader_.word();
    switch (tag) {
      case Tag::kSmallInt:
      case Tag::kBool: break;
      case Tag::kInt:
      case Tag::kDouble: raw_values(2); break;
      case Tag::kComplex: raw_values(4); break;
      default: Reader::fail("a number was expected");
    }
  }

  void argument() {
    uint32_t payload;
    const Tag tag = reader_.peek();
    switch (tag) {
      case Tag::kNone:
      case Tag::kDevice:
      case Tag::kHostDevice: reader_.word(); break;
      case Tag::kSlot:
        if ((*reader_.position() & kPayload) != kNoSlot) mark(WordKind::kUsePayload);
        reader_.word();
        break;
      case Tag::kIntList:
      case Tag::kDoubleList: reader_.tag(&payload); raw_values(uint64_t{payload} * 2); break;
      case Tag::kBoolList: reader_.tag(&payload); raw_values(payload); break;
      case Tag::kSlotList:
      case Tag::kOptionalSlotList:
        reader_.tag(&payload);
        reader_.need(payload);
        for (uint32_t i = 0; i < payload; ++i) slot_word(WordKind::kUse);
        break;
      case Tag::kScalarList:
        reader_.tag(&payload);
        for (uint32_t i = 0; i < payload; ++i) value();
        break;
      case Tag::kString: reader_.string(); break;
      case Tag::kScalarTensor:
        reader_.word();
        value();
        break;
      case Tag::kGenerator: reader_.word(); raw_values(4); break;
      case Tag::kShardedGenerator:
        reader_.tag(&payload);
        raw_fixed(1 + uint64_t{payload} * 2);
        raw_values(4);
        break;
      case Tag::kLocalSizes: reader_.tag(&payload); raw_fixed(1 + uint64_t{payload} * 2); break;
      case Tag::kLocalStrides: reader_.tag(&payload); raw_fixed(1 + uint64_t{payload} * 4); break;
      default: value();
    }
  }

  void output(bool sharded) {
    uint32_t payload;
    const Tag tag = reader_.peek();
    if (tag == Tag::kOutput) mark(WordKind::kDefinePayload);
    reader_.tag(&payload);
    switch (tag) {
      case Tag::kOutput:
        if (sharded) reader_.word();
        break;
      case Tag::kOutputList:
        reader_.need(uint64_t{payload} * (sharded ? 2 : 1));
        for (uint32_t i = 0; i < payload; ++i) {
          mark(WordKind::kDefine);
          reader_.word();
          if (sharded) reader_.word();
        }
        break;
      case Tag::kOutputIgnored: break;
      default: Reader::fail("a tag that opens no output");
    }
  }

  Reader reader_;
  const uint32_t* const record_;
  WordKind* const kinds_;
};

}  // namespace

uint32_t program_records(const uint32_t* record) {
  switch (static_cast<Kind>(record[1] & 0xffff)) {
    case Kind::kDefinePlan:
    case Kind::kMoveSlots:
    case Kind::kForgetPlan:
    case Kind::kRewritePlan:
    case Kind::kTurn: return 0;
    case Kind::kReplay: {
      // The worker that runs it checks whether the plan has as many.
      if (record[0] < kHeaderWords + 2) return 0;
      const uint32_t first = record[kHeaderWords], last = record[kHeaderWords + 1];
      return last > first ? last - first : 0;
    }
    default: return 1;
  }
}

void Window::clear() {
  words_.clear();
  kinds_.clear();
  tensors_.clear();
  offsets_.assign(1, 0);
  lives_.clear();
  alive_.clear();
  hash_ = token_ = 0;
}

uint32_t Window::record_of(uint32_t word) const {
  return static_cast<uint32_t>(std::upper_bound(offsets_.begin(), offsets_.end(), word) -
                               offsets_.begin() - 1);
}

void Window::append(const uint32_t* record, const uint32_t* end) {
  const uint32_t words = Reader::record(record, end).words();
  const auto begin = words_.size();
  kinds_.resize(begin + words, WordKind::kFixed);
  try {
    Classifier(record, record + words, kinds_.data() + begin).classify();
  } catch (const WireError&) {
    kinds_.resize(begin);
    throw;
  }
  words_.insert(words_.end(), record, record + words);
  tensors_.resize(begin + words, kNone);
  const uint32_t number = num_records();
  uint64_t token = 0, hash = hash_;
  for (uint32_t w = 0; w < words; ++w) {
    const WordKind kind = kinds_[begin + w];
    const uint32_t fixed = record[w] & ~varying(kind);
    token = mix(token, fixed);
    if (!is_slot(kind)) {
      hash = mix(hash, fixed);
      continue;
    }
    const uint32_t slot = record[w] & varying(kind);
    auto found = alive_.find(slot);
    if (found == alive_.end() || is_definition(kind)) {
      const auto fresh = static_cast<uint32_t>(lives_.size());
      lives_.push_back({slot, static_cast<uint32_t>(begin + w), is_definition(kind) ? number : kNone, kNone});
      found = alive_.insert_or_assign(slot, fresh).first;
    }
    tensors_[begin + w] = found->second;
    hash = mix(hash, uint64_t{fixed} << 32 | found->second);
  }
  if (static_cast<Kind>(record[1] & 0xffff) == Kind::kFree) {
    lives_[tensors_[begin + 2]].freed = number;
    alive_.erase(record[2]);
  }
  hash_ = hash;
  token_ = token;
  offsets_.push_back(static_cast<uint32_t>(begin + words));
}

}  // namespace dtorch
