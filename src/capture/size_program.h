// Integer formulas over the sizes of a call's arguments, in postfix.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <c10/util/ArrayRef.h>

namespace dtorch {

// The numbers are those of dtorch_mpi/sizes/programs.py. kConstant and kInput are followed by
// their operand; all others take two values from the stack, kNot one.
enum class SizeOp : int64_t {
  kConstant = 0, kInput, kAdd, kMultiply, kFloorDivide, kModulo, kMaximum, kMinimum,
  kEqual, kLess, kLessEqual, kAnd, kOr, kNot,
};

class SizeProgram {
 public:
  // Raises ValueError for what is no formula of `num_inputs` values.
  SizeProgram(std::vector<int64_t> code, size_t num_inputs);

  // nullopt where a number does not fit, or is divided by 0.
  std::optional<int64_t> evaluate(c10::ArrayRef<int64_t> inputs) const;

 private:
  std::vector<int64_t> code_;
};

}  // namespace dtorch
