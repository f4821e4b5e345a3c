// Calls that differ in sizes only. Once a family has been seen with two sizes, its outputs' sizes
// are worked out as formulas over the arguments' (dtorch_mpi/sizes), with the conditions under
// which those hold; a call of another size then finds its entry without Python.
//
// A size of 0 or 1 and a negative number belong to the family: operators treat them apart.
#pragma once

#include "capture/call_entry.h"
#include "capture/call_words.h"
#include "capture/size_program.h"

namespace dtorch {

// What a call's key says but for the sizes, and the sizes.
struct CallFamily {
  CallFamily(const CallKey& key, const OperatorInfo& info);

  uint64_t hash() const { return hash_of(words); }

  c10::SmallVector<uint64_t, 48> words;
  // The extent, where the key has one; then, in the order of the arguments, the sizes and strides
  // of each tensor on the workers and each number that is a size.
  std::vector<int64_t> values;
  // False where sizes are not all that the outputs' metadata follows from.
  bool is_open = true;

 private:
  void add_value(int64_t value);
  size_t add_tensor(const CallKey& key, size_t at);
  size_t add_argument(const CallKey& key, size_t at, bool is_size);
};

struct TensorFormula {
  std::vector<SizeProgram> sizes, strides;
  SizeProgram offset;
};

// What holds for the calls of a family that agree in all values but those left open.
struct FamilyFormula {
  std::vector<SizeProgram> conditions;
  std::vector<TensorFormula> outputs;  // lists flattened
};

// All that has to be asked of Python about a call that missed.
struct FamilyQuestion {
  std::vector<int64_t> before;  // the values of an earlier call
  std::vector<bool> varies;     // which of the values are to be left open
};

// The entry of a call whose family is known for its sizes, without its key; null if there is none.
// The stream lock must be held, for the others too.
std::unique_ptr<CallEntry> find_in_family(const CallFamily& family);
// Notes a call that missed. The question to ask, if the family was seen with another size before
// and an answer is worth its cost. num_operators: issued so far.
std::optional<FamilyQuestion> note_in_family(const CallFamily& family, const CallEntry& entry,
                                             uint64_t num_operators);
// Keeps the answer if it is right for the calls that were noted.
void keep_formula(const CallFamily& family, const FamilyQuestion& question,
                  std::optional<FamilyFormula> formula, const CallEntry& entry);
void forget_families();

}  // namespace dtorch
