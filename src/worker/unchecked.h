// What LibTorch takes from its caller unchecked, since PyTorch's own layers above make it right.
// A batch does not pass those layers.
#pragma once

#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

namespace dtorch {

class UncheckedArguments {
 public:
  UncheckedArguments() = default;
  explicit UncheckedArguments(const c10::FunctionSchema& schema) {
    const auto& arguments = schema.arguments();
    for (uint32_t a = 0; a < arguments.size(); ++a) {
      auto type = arguments[a].real_type();
      if (type->kind() == c10::TypeKind::OptionalType) {
        type = type->castRaw<c10::OptionalType>()->getElementType();
      }
      // Numbers that index tables of dtypes, layouts and memory formats.
      if (type->kind() == c10::TypeKind::ScalarTypeType) {
        below(a, c10::ScalarType::Undefined);
      } else if (type->kind() == c10::TypeKind::LayoutType) {
        below(a, c10::Layout::NumOptions);
      } else if (type->kind() == c10::TypeKind::MemoryFormatType) {
        below(a, c10::MemoryFormat::NumOptions);
      }
    }
    constexpr std::string_view kForward = "aten::_scaled_dot_product_flash_attention_for_cpu";
    if (schema.name() == kForward) {
      query_ = 0;
    } else if (schema.name() == std::string(kForward) + "_backward") {
      query_ = 1;
    }
  }

  bool empty() const { return bounded_.empty() && query_ < 0; }

  // Raises ValueError.
  void check(const std::vector<c10::IValue>& arguments) const {
    for (const auto& [argument, limit] : bounded_) {
      const auto& value = arguments[argument];
      TORCH_CHECK_VALUE(!value.isInt() || (value.toInt() >= 0 && value.toInt() < limit),
                        "argument ", argument, " is ", value.toInt(), ": expected one of the ", limit,
                        " dtypes, layouts or memory formats that exist");
    }
    if (query_ >= 0) check_attention(arguments.data() + query_);
  }

 private:
  struct Bounded {
    uint32_t argument;
    int64_t limit;
  };

  template <class Enum>
  void below(uint32_t argument, Enum limit) {
    bounded_.push_back({argument, static_cast<int64_t>(limit)});
  }

  // The kernel divides by these sizes, and takes those of the key for the value's and the
  // gradients'.
  void check_attention(const c10::IValue* arguments) const {
    const auto &query = arguments[0].toTensor(), &key = arguments[1].toTensor(),
               &value = arguments[2].toTensor();
    TORCH_CHECK_VALUE(query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && query.numel() > 0 &&
                          key.numel() > 0 && key.sizes() == value.sizes() &&
                          query.size(0) == key.size(0) && query.size(3) == key.size(3) &&
                          query.size(1) % key.size(1) == 0,
                      "expected query, key and value of sizes [batch, heads, length, width], none of "
                      "them empty, that fit each other");
    for (const auto* tensor : {&query, &key, &value}) {
      TORCH_CHECK_VALUE(tensor->size(3) == 1 || tensor->stride(3) == 1,
                        "expected query, key and value whose last dim is contiguous");
    }
    if (query_ == 0) return;
    const auto sizes = query.sizes();
    const auto &grad = arguments[-1].toTensor(), &out = arguments[3].toTensor(),
               &logsumexp = arguments[4].toTensor();
    TORCH_CHECK_VALUE(grad.sizes() == sizes && out.sizes() == sizes && logsumexp.sizes() == sizes.slice(0, 3),
                      "expected gradient, output and logsumexp of the query's sizes");
  }

  std::vector<Bounded> bounded_;
  int query_ = -1;  // where an attention's query stands among the arguments
};

}  // namespace dtorch
