// What is known of calls by their number, for those who rewrite what the program has done.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "capture/call_entry.h"

namespace dtorch {

struct KnownCall {
  std::string name;  // namespace::operator.overload
  std::vector<TensorMeta> inputs;  // the distributed tensors, in the order of the arguments
  std::vector<OutputMeta> outputs;
};

// Takes note of an operator's name, and of an entry that was just made; the stream lock must be
// held.
void note_operator(const OperatorInfo& info);
void note_call(const OperatorInfo& info, const CallKey& key, const CallEntry& entry);
// Null for a number that is not known, or was forgotten.
std::shared_ptr<const KnownCall> known_call(uint32_t number);
// The name of an operator by its number; empty if there is none.
std::string operator_name(uint32_t number);
// An operator that was redefined is another one from now on. Returns whether it was called before.
bool forget_calls(const std::string& name, const std::string& overload);
// The number of an operator that the program may not have called. Raises for one that is not
// registered.
uint32_t number_operator(const std::string& name, const std::string& overload);

}  // namespace dtorch
