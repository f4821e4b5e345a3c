// Every operator without a kernel of its own here runs its CPU kernel over the same memory.

#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "captures.h"
#include "device.h"
#include "operators.h"
#include "recording.h"

namespace simulated_gpu {
namespace {

using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

void require_kernel(const Traits& traits) {
  bool runs = traits.has_cuda_kernel &&
              traits.kernel->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  TORCH_CHECK_NOT_IMPLEMENTED(
      runs, "Could not run '", traits.name, "' with arguments from the 'CUDA' backend. ",
      traits.has_cuda_kernel
          ? "A real GPU has a kernel for it; the simulated one has none (tests/simulated_gpu)."
          : "This could be because the operator doesn't exist for this backend. (simulated GPU)");
}

std::optional<c10::Device> device_of_call(c10::ArrayRef<IValue> arguments) {
  std::optional<c10::Device> device;
  for (const IValue& argument : arguments) {
    each_tensor(argument, [&](const at::Tensor& tensor) {
      if (!device && tensor.defined() && tensor.is_cuda()) device = tensor.device();
    });
    if (!device && argument.isDevice() && argument.toDevice().is_cuda()) {
      device = argument.toDevice();
    }
  }
  return device;
}

void check_devices(const Traits& traits, c10::ArrayRef<IValue> arguments, c10::Device device) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || tensor.device() == device) return;
      if (tensor.is_cpu()) {
        if (traits.rule == DeviceRule::kAny || traits.arguments[i].may_be_cpu) return;
        if (traits.rule == DeviceRule::kTensorIterator && tensor.dim() == 0) return;
      }
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but got a tensor on ",
                  tensor.device(), ", different from other tensors on ", device,
                  " (when checking argument ", i, " in method wrapper_CUDA_", traits.name, ")");
    });
  }
}

bool reads_sizes_from_values(const Traits& traits, c10::ArrayRef<IValue> arguments) {
  if (traits.synchronizes) return true;
  if (traits.name == "aten::repeat_interleave.Tensor") return arguments[1].isNone();
  if (traits.name == "aten::histc" || traits.name == "aten::histc.out") {
    return arguments[2].toScalar().equal(arguments[3].toScalar().toDouble());  // it looks for both
  }
  if (traits.name != "aten::_index_put_impl_") return false;
  bool masks = false;  // it looks for what is set in them
  each_tensor(arguments[1], [&](const at::Tensor& index) {
    masks |= index.defined() && index.is_cuda() &&
             (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
  });
  return masks;
}

void check_dtypes(const Traits& traits, c10::ArrayRef<IValue> arguments) {
  if (!traits.multiplies_matrices) return;
  at::ScalarType dtype = arguments[0].toTensor().scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(!at::isIntegralType(dtype, /*includeBool=*/true), '"', traits.name,
                              "_cuda\" not implemented for '", at::toString(dtype), "'");
}

void fallback(const OperatorHandle& op, Stack* stack) {
  const Traits& traits = traits_of(op);
  require_kernel(traits);
  size_t count = traits.arguments.size();
  c10::ArrayRef<IValue> arguments = torch::jit::last(*stack, count);
  c10::Device device = device_of_call(arguments).value_or(c10::Device(c10::kCUDA));
  c10::DeviceGuard guard(device);
  device = guard.current_device();
  check_devices(traits, arguments, device);
  check_dtypes(traits, arguments);

  bool synchronizes = reads_sizes_from_values(traits, arguments);
  c10::Stream stream = current_stream(device.index());
  if (!traits.is_view) {
    if (std::shared_ptr<Capture> capture = capture_of(stream)) {
      if (synchronizes) capture->refuse(traits.name + ", which waits for the stream,");
      record(*capture, traits, device, stack);
      return;
    }
  }
  Aliases aliases(device.index(), traits.name);
  std::vector<IValue> on_cpu;
  for (size_t i = 0; i < count; ++i) {
    on_cpu.push_back(to_cpu(arguments[i], traits.arguments[i], aliases));
  }
  if (!traits.is_view) Checker::get().issue(stream, traits.name, aliases.uses());
  if (synchronizes) Checker::get().synchronize_stream(stream);
  torch::jit::drop(*stack, count);
  stack->insert(stack->end(), on_cpu.begin(), on_cpu.end());
  on_cpu.clear();
  run_on_cpu(traits, stack);
  aliases.take_over_resizes();
  for (size_t i = stack->size() - traits.returned; i < stack->size(); ++i) {
    (*stack)[i] = with_tensors(
        (*stack)[i], [&](const at::Tensor& tensor) { return aliases.to_cuda(tensor); });
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// Made of other operators, they would look for kernels of CUDA's past the dispatcher.
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_convolution", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  library.impl("convolution_backward", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace simulated_gpu
