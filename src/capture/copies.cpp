// Operators that cross between the client's memory and the workers'.
#include <algorithm>

#include <ATen/ops/_to_copy.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/fill.h>
#include <ATen/ops/select.h>
#include <ATen/ops/tensor_split_native.h>
#include <torch/library.h>

#include "capture/capture.h"
#include "capture/python_hooks.h"

namespace dtorch {
namespace {

// The value with the strides that PyTorch's own copy would have.
at::Tensor read_with_strides(const at::Tensor& tensor) {
  auto value = read_value(tensor);
  if (tensor.strides() == value.strides() || !tensor.is_non_overlapping_and_dense()) return value;
  auto strided = at::empty_strided(tensor.sizes(), tensor.strides(), value.options());
  return strided.copy_(value);
}

void to_copy(const c10::OperatorHandle& op, Stack* stack) {
  const auto* arguments = stack->data() + stack->size() - 7;
  const at::Tensor self = arguments[0].toTensor();
  const c10::Device target = arguments[3].isNone() ? self.device() : arguments[3].toDevice();
  const bool from_workers = on_workers(self);
  const bool to_workers = target.type() == kDeviceType;
  if (to_workers) check_device(target);
  if (from_workers && to_workers) {
    capture(op, stack);
    return;
  }
  auto result = from_workers ? read_with_strides(self) : self;
  const auto dtype = arguments[1].toOptional<c10::ScalarType>();
  const auto format = arguments[6].toOptional<c10::MemoryFormat>();
  const auto host = to_workers ? c10::Device(c10::kCPU) : target;
  const bool unchanged = (!dtype || *dtype == result.scalar_type()) && result.device() == host &&
                         (!format || *format == c10::MemoryFormat::Preserve);
  if (!unchanged) {
    result = at::_to_copy(result, dtype, arguments[2].toOptional<c10::Layout>(), host, false, false,
                          format);
  }
  if (to_workers) result = upload(result, 0);
  torch::jit::drop(*stack, 7);
  stack->emplace_back(std::move(result));
}

// Whether a number was made to look like more, as it is where it is assigned to a part of a tensor.
bool is_one_number(const at::Tensor& tensor) {
  const auto strides = tensor.strides();
  return tensor.dim() > 0 && tensor.numel() > 0 &&
         std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride == 0; });
}

void copy(const c10::OperatorHandle& op, Stack* stack) {
  auto* arguments = stack->data() + stack->size() - 3;
  const at::Tensor self = arguments[0].toTensor(), source = arguments[1].toTensor();
  if (!on_workers(self)) {
    self.copy_(read_value(source));
    torch::jit::drop(*stack, 3);
    stack->emplace_back(self);
    return;
  }
  if (!on_workers(source) && source.dim() > 0) {
    // Each worker gets its own part only, where the shapes allow it.
    const uint32_t sharding = slot_of(self).sharding;
    const bool same = source.sizes() == self.sizes() && sharding_is_splitting(sharding);
    arguments[1] = upload(source, same ? sharding : 0);
  } else if (on_workers(source) && is_one_number(source)) {
    // It may come out of self's own memory, which PyTorch's assignments on the CPU take.
    at::Tensor number = source;
    while (number.dim() > 0) number = number.select(0, 0);
    self.fill_(number);
    torch::jit::drop(*stack, 3);
    stack->emplace_back(self);
    return;
  }
  capture(op, stack);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  return read_value(self).item();
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  if (self.sizes() != other.sizes()) return false;
  return self.eq(other).all().item().toBool();
}

// Forward-mode AD asks it of tangents: their layouts are compared beside it.
bool has_same_storage_numel(const at::Tensor& self, const at::Tensor& other) {
  return self.numel() == other.numel();
}

// How many parts there are is the value of a tensor, which PyTorch wants on the CPU.
std::vector<at::Tensor> tensor_split(const at::Tensor& self, const at::Tensor& where, int64_t dim) {
  return at::native::tensor_split(self, on_workers(where) ? read_value(where) : where, dim);
}

// torch.load with map_location: the storage is still the file's, on the CPU. Tensors that share
// it share memory here too.
at::Tensor& set_from_storage(at::Tensor& self, at::Storage source, c10::SymInt offset,
                             c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  TORCH_CHECK(source.device_type() == c10::kCPU, "a dtorch tensor can't be set to a storage on ",
              source.device(), ": it has none on the client");
  const auto whole = arrived_storage(source, self.scalar_type());
  const auto part = whole.as_strided(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                                     offset.guard_int(__FILE__, __LINE__));
  self.unsafeGetTensorImpl()->shallow_copy_from(part.getIntrusivePtr());
  return self;
}

void record_stream(at::Tensor&, at::Stream) {}  // one stream: order is the program's

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_to_copy", torch::CppFunction::makeFromBoxedFunction<&to_copy>());
  library.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&copy>());
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("equal", &equal);
  library.impl("set_.source_Storage_storage_offset", &set_from_storage);
  library.impl("_has_same_storage_numel", &has_same_storage_numel);
  library.impl("record_stream", &record_stream);
  library.impl("tensor_split.tensor_indices_or_sections", &tensor_split);
}

// It is made of operators that autograd knows: the kernel above must not hide them from it.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("tensor_split.tensor_indices_or_sections", &tensor_split);
}

}  // namespace dtorch
