// Autocast for the dtorch device, by the lists of the workers' own kind of device.
//
// PyTorch registers a kernel for each operator that autocast touches; which of its policies
// that kernel follows can't be asked. For accelerators its header has the lists; for the CPU the two
// short ones are named here (torch 2.13). The rest is float32.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "capture/autocast.h"
#include "capture/call_entry.h"

namespace dtorch {
namespace {

#define DTORCH_NAME(name, ...) "aten::" #name,
constexpr std::string_view kLower[] = {AT_FORALL_LOWER_PRECISION_FP(DTORCH_NAME)};
constexpr std::string_view kPromote[] = {AT_FORALL_PROMOTE(DTORCH_NAME) "aten::stack", "aten::cat"};
constexpr std::string_view kFloat32Result[] = {AT_FORALL_FP32_SET_OPT_DTYPE(DTORCH_NAME)};
#undef DTORCH_NAME

constexpr std::string_view kLowerOnHost[] = {
    "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::bmm", "aten::mm", "aten::baddbmm",
    "aten::addmm", "aten::addbmm", "aten::linear", "aten::_convolution", "aten::matmul",
    "aten::conv_tbc", "aten::mkldnn_rnn_layer", "aten::conv_transpose1d", "aten::conv_transpose2d",
    "aten::conv_transpose3d", "aten::prelu", "aten::scaled_dot_product_attention",
    "aten::_native_multi_head_attention", "aten::linalg_vecdot"};
constexpr std::string_view kPromoteOnHost[] = {"aten::stack", "aten::cat", "aten::index_copy"};

enum class Policy { kLower, kPromote, kFloat32, kFloat32Result };

c10::ScalarType widest(c10::ScalarType so_far, const at::Tensor& tensor) {
  return tensor.defined() ? at::autocast::prioritize(so_far, tensor, kDeviceType) : so_far;
}

template <Policy policy>
void cast_and_call(const c10::OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastPrivateUse1);
  auto target = policy == Policy::kFloat32 ? at::kFloat : at::autocast::get_autocast_dtype(kDeviceType);
  const size_t base = stack->size() - op.schema().arguments().size();
  if (policy == Policy::kPromote) {
    for (size_t i = base; i < stack->size(); ++i) {
      const auto& value = (*stack)[i];
      if (value.isTensor()) target = widest(target, value.toTensor());
      if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) target = widest(target, tensor);
      }
    }
  }
  const auto cast = [&](const at::Tensor& tensor) {
    return tensor.defined() ? at::autocast::cached_cast(target, tensor, kDeviceType) : tensor;
  };
  for (size_t i = base; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = cast(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(cast(tensor));
      value = std::move(list);
    }
  }
  op.callBoxed(*stack);
}

// Asks for a float32 result, where the program asks for none.
template <>
void cast_and_call<Policy::kFloat32Result>(const c10::OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastPrivateUse1);
  const auto& arguments = op.schema().arguments();
  const size_t base = stack->size() - arguments.size();
  const auto& input = (*stack)[base];
  if (input.isTensor() && at::autocast::is_eligible(input.toTensor(), kDeviceType)) {
    for (size_t a = 0; a < arguments.size(); ++a) {
      auto& value = (*stack)[base + a];
      if (arguments[a].name() == "dtype" && value.isNone()) value = at::kFloat;
    }
  }
  op.callBoxed(*stack);
}

template <size_t N>
bool contains(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

void register_autocast(c10::DeviceType workers) {
  static const auto* fallthrough = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFallthrough());
    return made;
  }();
  static torch::Library* library = nullptr;
  delete library;
  library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  const bool on_host = workers == c10::DeviceType::CPU;
  const auto known = on_host ? c10::DispatchKey::AutocastCPU : c10::DispatchKey::AutocastCUDA;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || !op->hasKernelForDispatchKey(known)) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (on_host ? contains(kLowerOnHost, name.name) : contains(kLower, name.name)) {
      library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&cast_and_call<Policy::kLower>>());
    } else if (on_host ? contains(kPromoteOnHost, name.name) : contains(kPromote, name.name)) {
      library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&cast_and_call<Policy::kPromote>>());
    } else if (!on_host && contains(kFloat32Result, name.name)) {
      library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&cast_and_call<Policy::kFloat32Result>>());
    } else {
      library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&cast_and_call<Policy::kFloat32>>());
    }
  }
}

}  // namespace dtorch
