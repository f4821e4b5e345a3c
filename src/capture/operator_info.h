// What capture needs to know of an operator, worked out once from its schema.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

namespace dtorch {

enum class ArgumentKind : uint8_t {
  kTensor,
  kTensorList,
  kOptionalTensorList,
  kShaping,     // int, bool, list, string, dtype: may shape the output, so part of the key
  kScalar,      // a number that does not shape the output: only its type is in the key
  kScalarList,
  kDevice,
  kGenerator,
};

struct ArgumentInfo {
  ArgumentKind kind;
  bool written;
  bool is_size;  // a number, or a list of them, that may be a size of a tensor
};

struct ReturnInfo {
  bool is_tensor = false;
  bool is_list = false;
  int16_t written_argument = -1;  // the argument that is returned
  int16_t viewed_argument = -1;   // the argument whose memory the return shares
};

// How its output metadata is found.
enum class MetaRule : uint8_t {
  kMeta,      // PyTorch's meta kernel
  kMeasured,  // the meta kernel is missing or wrong: ask the worker, keep the answer
  kDynamic,   // depends on data: ask the worker each time
};

// Arguments that say where a part of a tensor lies. They shift the output's offset and leave
// the rest of its metadata alone, so a loop over positions finds one entry in the cache.
enum class Positions : uint8_t { kNone, kSelect, kSlice, kSelectBackward, kSliceBackward };

// Whether an operator is not PyTorch's nor ours: mostly a Python function, which runs on the workers
// and nowhere else.
bool is_users_operator(std::string_view name);

struct OperatorInfo {
  OperatorInfo(const c10::OperatorHandle& handle, uint32_t number);

  c10::OperatorHandle handle;
  uint32_t number;
  std::string name, overload;
  std::vector<ArgumentInfo> arguments;
  std::vector<ReturnInfo> returns;
  MetaRule meta_rule = MetaRule::kMeta;
  uint32_t defined_for = 0;  // the generation of workers that know it
  Positions positions = Positions::kNone;
  bool is_users = false;
  bool writes = false;
  bool writes_list = false;  // a _foreach_ operator in place
  bool views = false;
  int16_t generator_argument = -1;
  // A random operator whose schema has no generator: the workers' form has one, as the last
  // argument (see random/adopt.h).
  bool adds_generator = false;
  bool draws() const { return generator_argument >= 0 || adds_generator; }
  // Fills its first argument, the only tensor, with random numbers.
  bool fills_randomly = false;
  bool takes_host_indices = false;  // index tensors may lie on the CPU
  bool absolute_offset = false;     // as_strided: the offset counts from the storage
};

// The workers' own form of a random operator, dtorch:: in place of aten::; nullopt for others.
std::optional<c10::OperatorHandle> own_random_operator(const c10::OperatorName& name);

// The entry of `handle`; the stream lock must be held.
OperatorInfo& operator_info(const c10::OperatorHandle& handle);
// The operator of this name has another schema or kernel from now on; the stream lock must be held.
// Returns whether it was called before.
bool forget_operator(std::string_view name, std::string_view overload);

}  // namespace dtorch
