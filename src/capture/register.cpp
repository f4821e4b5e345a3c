#include <map>
#include <string_view>

#include <ATen/core/enum_tag.h>
#include <torch/library.h>

#include "capture/capture.h"
#include "capture/operator_info.h"

namespace dtorch {
namespace {

// Named by files of this room with kernels of their own.
constexpr std::string_view kOwnKernels[] = {
    "aten::_to_copy", "aten::copy_", "aten::_local_scalar_dense", "aten::equal",
    "aten::record_stream", "aten::_has_same_storage_numel",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_scaled_dot_product_fused_attention_overrideable_backward",
    "aten::_reshape_alias", "aten::histc",
    "aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_lstm_cell_backward_impl",
    "aten::_thnn_fused_gru_cell", "aten::_thnn_fused_gru_cell_backward",
    "aten::_foreach_addcdiv.Tensor", "aten::_foreach_addcdiv_.Tensor",
    "aten::_foreach_addcmul.Tensor", "aten::_foreach_addcmul_.Tensor",
    "aten::_nested_tensor_from_mask_left_aligned", "aten::_has_compatible_shallow_copy_type"};

// The same, with all their overloads: in-place views, and what else gives a tensor other sizes.
constexpr std::string_view kReshaping[] = {"aten::squeeze_", "aten::unsqueeze_", "aten::t_",
                                           "aten::transpose_", "aten::as_strided_", "aten::resize_"};

bool has_own_kernel(const c10::OperatorName& name) {
  for (auto own : kReshaping) {
    if (own == name.name) return true;
  }
  const std::string full =
      name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  for (auto own : kOwnKernels) {
    if (own == full) return true;
  }
  return false;
}

// Random operators that have a composite kernel are left to it: it calls one of those that
// workers have (mostly an in-place one), which draws seed and offset.
bool is_random(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::nondeterministic_seeded)) return true;
  for (const auto& argument : op.schema().arguments()) {
    const auto& type = argument.type();
    if (type->kind() == c10::TypeKind::GeneratorType) return true;
    if (type->kind() == c10::TypeKind::OptionalType &&
        type->castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::GeneratorType) {
      return true;
    }
  }
  return false;
}

// Operators that answer with a truth value, or on the CPU (the batch sizes of a packed sequence): their composite kernels call operators that workers have, and read what they need.
bool answers_on_client(std::string_view name) {
  return name == "aten::allclose" || name == "aten::_pack_padded_sequence";
}

bool has_composite_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

}  // namespace

bool capture_operator(const std::string& name, const std::string& overload) {
  static auto* libraries = new std::map<std::string, torch::Library>;
  const auto op = c10::Dispatcher::singleton().findOp({name, overload});
  if (!op || !op->hasSchema() || !is_users_operator(name) || !has_composite_kernel(*op) ||
      op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
    return false;
  }
  const std::string space = name.substr(0, name.find("::"));
  auto library = libraries->find(space);
  if (library == libraries->end()) {
    library = libraries->try_emplace(space, torch::Library::IMPL, space, c10::DispatchKey::PrivateUse1,
                                     __FILE__, __LINE__).first;
  }
  const std::string full = overload.empty() ? name : name + "." + overload;
  library->second.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&capture>());
  return true;
}

size_t capture_users_operators() {
  size_t count = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    count += capture_operator(name.name, name.overload_name);
  }
  return count;
}

size_t register_capture() {
  static auto* fallback =
      new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&capture>());
  size_t named = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::") || has_own_kernel(name)) continue;
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || is_random(*op) || answers_on_client(name.name)) {
      continue;
    }
    // These composite kernels would run instead of the fallback.
    if (!has_composite_kernel(*op)) continue;
    const std::string full =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&capture>());
    ++named;
  }
  return named;
}

}  // namespace dtorch
