// What operators are and do, by their schemas, and their CPU kernels.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "aliases.h"

namespace simulated_gpu {

// Which devices an operator's tensors may be on.
enum class DeviceRule {
  kOneDevice,       // all on the same, even those of no dimensions
  kTensorIterator,  // CPU tensors of no dimensions too
  kAny,             // the operator looks itself
};

struct Argument {
  bool read;
  bool written;
  bool may_be_cpu;
};

struct Traits {
  std::string name;
  bool has_cuda_kernel = false;
  bool synchronizes = false;
  bool is_view = false;
  bool is_random = false;
  bool multiplies_matrices = false;
  DeviceRule rule = DeviceRule::kOneDevice;
  std::vector<Argument> arguments;
  size_t returned = 0;
  std::optional<c10::OperatorHandle> kernel;  // whose CPU kernel stands in for one without
};

// The operators that a real GPU has kernels for, "aten::add.out"; others fail.
void set_cuda_operators(std::map<std::string, DeviceRule> rules);

// Stays where it is until the process is gone.
const Traits& traits_of(const c10::OperatorHandle& op);

template <class Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) each_tensor(item, visit);
  }
}

// The same value with each tensor in it changed.
template <class Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    std::vector<at::Tensor> tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = change(tensor);
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      tensors.push_back(tensor ? std::optional<at::Tensor>(change(*tensor)) : std::nullopt);
    }
    return tensors;
  }
  return value;
}

c10::IValue to_cpu(const c10::IValue& value, const Argument& argument, Aliases& aliases);

// Leaves what the CPU kernel returns, for arguments on the CPU.
void run_on_cpu(const Traits& traits, torch::jit::Stack* stack);

}  // namespace simulated_gpu
