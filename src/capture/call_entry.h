// What is known of a call: the outputs' metadata and how the inputs must lie.
//
// Found by a key of everything that can change it (operator, argument metadata, shardings,
// shaping arguments); worked out on the first call with that key, by PyTorch's own meta
// kernels and sharding rules.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include "capture/operator_info.h"
#include "tensor/slot.h"

namespace dtorch {

using Stack = std::vector<c10::IValue>;

struct TensorMeta {
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset = 0;  // relative to the viewed input's, where there is one
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  uint32_t sharding = 0;
  bool conjugate = false, negative = false;
};

enum class OutputKind : uint8_t { kTensor, kList, kWritten, kUndefined, kConstant };

struct OutputMeta {
  OutputKind kind = OutputKind::kUndefined;
  c10::SmallVector<TensorMeta, 1> tensors;  // one, or one an element of the list
  c10::IValue constant;                     // an int or bool that the meta kernel returned
};

// A distributed tensor input, in the order of the arguments, lists flattened.
struct InputMove {
  uint16_t input;
  uint32_t from, to;  // shardings
  bool restore;       // an in-place operator's own: lay the result back afterwards
  bool only_reduces;  // the two differ on axes only that hold partial sums under `from`
};

struct CallEntry {
  c10::SmallVector<uint64_t, 48> key;
  uint32_t number = 0;  // in the records of such calls; 0 until it is known
  std::vector<OutputMeta> outputs;  // one a return
  std::vector<InputMove> moves;
  // (argument, output): send the argument as the global size of that output, which every
  // worker turns into its local size.
  std::vector<std::pair<uint16_t, uint16_t>> local_sizes;
  // The same for strides: those of a dense local tensor with the dims in the global order.
  std::vector<std::pair<uint16_t, uint16_t>> local_strides;
  // Other operators that give the result on shards, called in place of this one.
  std::function<void(Stack* stack)> decomposition;
  std::unique_ptr<CallEntry> next;  // another key of the same hash
};

// The key, and on the way the inputs and a bound for the record's length.
class CallKey {
 public:
  // Raises PyTorch's device-mismatch error for a CPU tensor that is no scalar.
  CallKey(const OperatorInfo& info, const c10::IValue* arguments);

  uint64_t hash() const;
  bool operator==(const CallEntry& entry) const {
    return words == entry.key;
  }

  c10::SmallVector<uint64_t, 48> words;
  c10::SmallVector<const at::Tensor*, 8> inputs;
  size_t record_words = kHeaderWords_;
  bool sharded = false;
  // Where the output begins in the viewed input, if the key leaves that out.
  int64_t position = 0;
  // The arguments [first, last) for which an extent stands in the key.
  std::pair<size_t, size_t> left_out{0, 0};

 private:
  static constexpr size_t kHeaderWords_ = 8;
  void add_tensor(const at::Tensor& tensor, const OperatorInfo& info);
  void add_value(const c10::IValue& value);
  // Adds the extent that the positions among the arguments give, in their place. Returns the
  // arguments that this stands for; none where the positions are wrong.
  std::pair<size_t, size_t> add_positions(const OperatorInfo& info, const c10::IValue* arguments);
};

// Known calls. The stream lock must be held.
CallEntry* find_entry(const CallKey& key, uint64_t hash);
CallEntry* keep_entry(uint64_t hash, std::unique_ptr<CallEntry> entry);
size_t num_entries();
// What is known may name shardings of workers that were shut down.
void forget_entries();

// Whether an index is a mask: how much it selects depends on the data.
bool has_mask(const OperatorInfo& info, const c10::IValue* arguments);

// Works an entry out with PyTorch's meta kernels; raises what PyTorch raises on the CPU for
// arguments it does not take. Returns false where only a worker can tell.
// resized: the written arguments to which the operator gives other sizes, with these.
using Resized = std::vector<std::pair<at::Tensor, std::vector<int64_t>>>;
bool infer_outputs(const OperatorInfo& info, const c10::IValue* arguments, CallEntry* entry,
                   Resized* resized);
// Raises PyTorch's error if its CPU kernel does not take arguments of this metadata.
void check_on_host(const OperatorInfo& info, const c10::IValue* arguments);
// The same where the entry is known from calls of other sizes, if it may depend on sizes.
void check_new_sizes(const OperatorInfo& info, const c10::IValue* arguments, const CallEntry& entry);
// The same for the numbers that a random operator takes, which are not in the key: at each call.
void check_bounds(const OperatorInfo& info, const c10::IValue* arguments);

}  // namespace dtorch
