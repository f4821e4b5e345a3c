#include "capture/size_program.h"

#include <algorithm>
#include <array>

#include <c10/util/Exception.h>

namespace dtorch {
namespace {

constexpr size_t kMostValues = 32;  // on the stack

bool takes_operand(SizeOp op) { return op == SizeOp::kConstant || op == SizeOp::kInput; }

// Python's: the remainder has the divisor's sign.
int64_t floor_modulo(int64_t a, int64_t b) {
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

std::optional<int64_t> combine(SizeOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case SizeOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
      return result;
    case SizeOp::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
      return result;
    case SizeOp::kFloorDivide:
      if (b == 0 || (a == INT64_MIN && b == -1)) return std::nullopt;
      return (a - floor_modulo(a, b)) / b;
    case SizeOp::kModulo:
      if (b == 0 || b == -1) return b == 0 ? std::nullopt : std::optional<int64_t>(0);
      return floor_modulo(a, b);
    case SizeOp::kMaximum: return std::max(a, b);
    case SizeOp::kMinimum: return std::min(a, b);
    case SizeOp::kEqual: return a == b;
    case SizeOp::kLess: return a < b;
    case SizeOp::kLessEqual: return a <= b;
    case SizeOp::kAnd: return a != 0 && b != 0;
    case SizeOp::kOr: return a != 0 || b != 0;
    default: return std::nullopt;
  }
}

}  // namespace

SizeProgram::SizeProgram(std::vector<int64_t> code, size_t num_inputs) : code_(std::move(code)) {
  size_t depth = 0;
  for (size_t i = 0; i < code_.size(); ++i) {
    TORCH_CHECK_VALUE(code_[i] >= 0 && code_[i] <= static_cast<int64_t>(SizeOp::kNot),
                      "no operation ", code_[i], " of a size program");
    const auto op = static_cast<SizeOp>(code_[i]);
    if (takes_operand(op)) {
      TORCH_CHECK_VALUE(++i < code_.size(), "a size program that ends early");
      TORCH_CHECK_VALUE(op == SizeOp::kConstant ||
                            (code_[i] >= 0 && static_cast<size_t>(code_[i]) < num_inputs),
                        "no input ", code_[i], " of a size program");
      ++depth;
    } else {
      const size_t taken = op == SizeOp::kNot ? 1 : 2;
      TORCH_CHECK_VALUE(depth >= taken, "a size program that lacks a value");
      depth -= taken - 1;
    }
    TORCH_CHECK_VALUE(depth <= kMostValues, "a size program of more than ", kMostValues, " values");
  }
  TORCH_CHECK_VALUE(depth == 1, "a size program that ends with ", depth, " values");
}

std::optional<int64_t> SizeProgram::evaluate(c10::ArrayRef<int64_t> inputs) const {
  std::array<int64_t, kMostValues> stack;
  size_t depth = 0;
  for (size_t i = 0; i < code_.size(); ++i) {
    const auto op = static_cast<SizeOp>(code_[i]);
    if (takes_operand(op)) {
      const int64_t operand = code_[++i];
      stack[depth++] = op == SizeOp::kConstant ? operand : inputs[operand];
    } else if (op == SizeOp::kNot) {
      stack[depth - 1] = stack[depth - 1] == 0;
    } else {
      const auto result = combine(op, stack[depth - 2], stack[depth - 1]);
      if (!result) return std::nullopt;
      stack[--depth - 1] = *result;
    }
  }
  return stack[0];
}

}  // namespace dtorch
