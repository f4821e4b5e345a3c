#include "operators.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <mutex>
#include <set>
#include <unordered_map>

#include "hooks.h"

namespace simulated_gpu {
namespace {

using c10::IValue;
using c10::OperatorHandle;

// A real GPU's kernels of these wait for the stream, to read sizes or values.
const std::set<std::string> kSynchronizing = {
    "aten::_local_scalar_dense", "aten::nonzero",      "aten::nonzero.out",
    "aten::masked_select",       "aten::equal",        "aten::masked_select.out",
    "aten::_unique",             "aten::_unique2",     "aten::unique_dim",
    "aten::unique_consecutive",  "aten::bincount",     "aten::unique_dim_consecutive",
};

// cuBLAS multiplies no integers.
const std::set<std::string> kMatrixProducts = {
    "aten::addmm.out", "aten::mm.out", "aten::bmm.out",      "aten::baddbmm.out",
    "aten::addmv.out", "aten::dot",    "aten::addbmm.out",   "aten::_addmm_activation.out",
};

std::map<std::string, DeviceRule> cuda_operators;

bool writes(const c10::AliasInfo& alias) {
  if (alias.isWrite()) return true;
  for (const c10::AliasInfo& contained : alias.containedTypes()) {
    if (writes(contained)) return true;
  }
  return false;
}

Traits traits_from(const OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  Traits traits;
  traits.name = schema.name();
  if (!schema.overload_name().empty()) traits.name += "." + schema.overload_name();
  auto known = cuda_operators.find(traits.name);
  traits.has_cuda_kernel = known != cuda_operators.end();
  if (traits.has_cuda_kernel) traits.rule = known->second;
  traits.synchronizes = kSynchronizing.count(traits.name);
  traits.multiplies_matrices = kMatrixProducts.count(traits.name);
  bool only_resizes = traits.name == "aten::resize_";
  for (const c10::Argument& argument : schema.arguments()) {
    const c10::AliasInfo* alias = argument.alias_info();
    bool written = alias != nullptr && writes(*alias) && !only_resizes;
    // What a view is of, is neither read nor written.
    traits.arguments.push_back({alias == nullptr, written, argument.name() == "indices"});
  }
  for (const c10::Argument& result : schema.returns()) {
    traits.is_view |= result.alias_info() != nullptr && !writes(*result.alias_info());
  }
  traits.returned = schema.returns().size();
  traits.is_random = op.hasTag(at::Tag::nondeterministic_seeded);
  std::string base = schema.name().substr(schema.name().find("::") + 2);
  auto own = c10::Dispatcher::singleton().findSchema(
      {"simulated_gpu::" + base, schema.overload_name()});
  traits.kernel = own ? own : std::optional<OperatorHandle>(op);
  return traits;
}

}  // namespace

void set_cuda_operators(std::map<std::string, DeviceRule> rules) {
  cuda_operators = std::move(rules);
}

const Traits& traits_of(const OperatorHandle& op) {
  static std::mutex mutex;
  static auto* cache = new std::unordered_map<c10::OperatorName, Traits>();
  std::lock_guard guard(mutex);
  auto found = cache->find(op.operator_name());
  if (found == cache->end()) found = cache->emplace(op.operator_name(), traits_from(op)).first;
  return found->second;
}

IValue to_cpu(const IValue& value, const Argument& argument, Aliases& aliases) {
  if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(c10::kCPU);
  if (value.isGenerator() && value.toGenerator().defined()) {
    return cpu_generator(value.toGenerator());
  }
  return with_tensors(value, [&](const at::Tensor& tensor) {
    return aliases.to_cpu(tensor, argument.read, argument.written);
  });
}

void run_on_cpu(const Traits& traits, torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  traits.kernel->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

}  // namespace simulated_gpu
