// A window: a run of records as a graph, whose edges are the slots that they name.
//
// Rank 0 and the workers number a window's tensors alike, in the order in which its records first
// name them. Two windows are the same program if their records, with the tensors so numbered,
// differ in values only.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "wire/record.h"

namespace dtorch {

// What a word of a record is.
enum class WordKind : uint8_t {
  kFixed,          // belongs to the program
  kValue,          // data, another one each time: a learning rate, a seed, a position
  kUse,            // a slot
  kDefine,         // a slot that begins to hold a tensor here
  // The same in a tag's payload; the tag itself belongs to the program.
  kValuePayload,
  kUsePayload,
  kDefinePayload,
};

constexpr uint32_t kPayload = 0xffffff;

inline bool is_slot(WordKind kind) {
  return kind == WordKind::kUse || kind == WordKind::kDefine || kind == WordKind::kUsePayload ||
         kind == WordKind::kDefinePayload;
}
inline bool is_definition(WordKind kind) {
  return kind == WordKind::kDefine || kind == WordKind::kDefinePayload;
}
// The bits of a word that vary with the run.
inline uint32_t varying(WordKind kind) {
  return kind == WordKind::kFixed ? 0 : kind < WordKind::kValuePayload ? ~0u : kPayload;
}

// How many of the program's records this one stands for.
uint32_t program_records(const uint32_t* record);

class Window {
 public:
  static constexpr uint32_t kNone = ~0u;

  // A tensor that records of the window name.
  struct Life {
    uint32_t slot = 0;            // when the records were written
    uint32_t first = 0;           // the word that names it first
    uint32_t defined = kNone;     // by which record; kNone: before the window
    uint32_t freed = kNone;       // by which record; kNone: not in the window
    // Nothing outside of the window ever sees it.
    bool is_temporary() const { return defined != kNone && freed != kNone; }
  };

  // Takes the record at `record`. Raises WireError for one that is not well-formed or can't be
  // part of a window.
  void append(const uint32_t* record, const uint32_t* end);
  void clear();

  uint32_t num_records() const { return static_cast<uint32_t>(offsets_.size() - 1); }
  // Where a record begins among the words.
  uint32_t offset(uint32_t record) const { return offsets_[record]; }
  uint32_t length(uint32_t record) const { return offsets_[record + 1] - offsets_[record]; }
  uint32_t record_of(uint32_t word) const;
  const std::vector<uint32_t>& words() const { return words_; }
  std::vector<uint32_t>& words() { return words_; }
  WordKind kind(uint32_t word) const { return kinds_[word]; }
  // Of a slot's word: which of the lives.
  uint32_t tensor(uint32_t word) const { return tensors_[word]; }
  const std::vector<Life>& lives() const { return lives_; }
  // Of all that makes it this program.
  uint64_t hash() const { return hash_; }
  // The same of one record, without its tensors.
  uint64_t last_token() const { return token_; }

 private:
  void classify(const uint32_t* record, const uint32_t* end);

  std::vector<uint32_t> words_;
  std::vector<WordKind> kinds_;
  std::vector<uint32_t> tensors_;
  std::vector<uint32_t> offsets_{0};
  std::vector<Life> lives_;
  std::unordered_map<uint32_t, uint32_t> alive_;  // slot -> the tensor in it
  uint64_t hash_ = 0, token_ = 0;
};

}  // namespace dtorch
