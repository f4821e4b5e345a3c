// Copies between host and devices, and the kernels that make tensors.

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <cstring>

#include "aliases.h"
#include "captures.h"
#include "device.h"
#include "host_memory.h"

namespace simulated_gpu {
namespace {

using at::Tensor;
using c10::Stream;

constexpr int kUnread = 0xAB;  // what the host finds where a copy has not arrived

c10::Device on_device(std::optional<c10::Device> device) {
  c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  return device && device->has_index() ? *device : guard.getDevice();
}

Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(on_device(device));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<c10::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(on_device(device));
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), device_allocator(),
      c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype));
}

size_t hash_of(const char* data, size_t bytes) {
  return std::hash<std::string_view>()(std::string_view(data, bytes));
}

char* start_of(const Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

// PyTorch's copy kernel calls record_event so.
void record_event(const Tensor& on_host, Stream stream) {
  void* context = on_host.storage().data_ptr().get_context();
  host_allocator()->record_event(on_host.data_ptr(), context, stream);
}

// A host tensor that a copy can go to or come from behind the host's back.
bool is_asynchronous(const Tensor& on_host, bool non_blocking) {
  return non_blocking && on_host.is_non_overlapping_and_dense() && is_pinned(on_host.data_ptr());
}

void wait_for_copy(Stream stream) {
  Checker::get().count([](Counts& counts) { counts.blocking_copies += 1; });
  Checker::get().host_reaches(Checker::get().clock_of(stream));
}

void copy_to_host(const Tensor& self, const Tensor& source, bool non_blocking) {
  const auto pinned = while_copy_begins();
  const auto seen = Checker::get().hold();
  Stream stream = current_stream(source.device().index());
  refuse_in_capture(stream, "a copy from the device to the host");
  Aliases aliases(source.device().index(), "aten::copy_");
  Tensor from = aliases.to_cpu(source, /*read=*/true, /*written=*/false);
  uint64_t time = Checker::get().issue(stream, "aten::copy_", aliases.uses());
  if (!is_asynchronous(self, non_blocking)) {
    wait_for_copy(stream);
    self.copy_(from);
    return;
  }
  Tensor snapshot = at::empty_strided(self.sizes(), self.strides(), self.options());
  snapshot.copy_(from);
  char* into = start_of(self);
  size_t bytes = self.nbytes();
  std::memset(into, kUnread, bytes);
  Checker::get().add_pending(
      stream, time, [=] { std::memcpy(into, snapshot.const_data_ptr(), bytes); });
  use_pinned(into, stream, time);
  record_event(self, stream);
}

void copy_to_device(const Tensor& self, const Tensor& source, bool non_blocking) {
  const auto pinned = while_copy_begins();
  const auto seen = Checker::get().hold();
  Stream stream = current_stream(self.device().index());
  refuse_in_capture(stream, "a copy from the host to the device");
  Aliases aliases(self.device().index(), "aten::copy_");
  Tensor into = aliases.to_cpu(self, /*read=*/false, /*written=*/true);
  uint64_t time = Checker::get().issue(stream, "aten::copy_", aliases.uses());
  into.copy_(source);
  if (is_asynchronous(source, non_blocking)) {
    const char* from = start_of(source);
    size_t bytes = source.nbytes();
    size_t hash = hash_of(from, bytes);
    std::string what = contents(source);
    std::string where = Checker::get().name_of(Checker::get().index_of(stream));
    Checker::get().add_pending(stream, time, [=] {
      if (hash_of(from, bytes) == hash) return;
      Checker::get().violation("the host wrote pinned " + what + " while a copy of it on " + where +
                               " could still read it: the host had not waited for that copy");
    });
    use_pinned(from, stream, time);
    record_event(source, stream);
  } else if (!non_blocking) {
    wait_for_copy(stream);
  }
}

void record_copy(Capture& capture, const Tensor& self, const Tensor& source) {
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  torch::jit::Stack stack{self, source, /*non_blocking=*/false};
  record(capture, traits_of(op), self.device(), &stack);
}

// As PyTorch: on the source's stream, between barriers with the destination's.
void copy_on_devices(const Tensor& self, const Tensor& source) {
  Stream stream = current_stream(source.device().index());
  Stream other = current_stream(self.device().index());
  if (self.device() != source.device()) {
    refuse_in_capture(stream, "a copy to another device");
    refuse_in_capture(other, "a copy from another device");
  } else if (std::shared_ptr<Capture> capture = capture_of(stream)) {
    record_copy(*capture, self, source);
    return;
  }
  Aliases aliases(source.device().index(), "aten::copy_");
  Tensor from = aliases.to_cpu(source, /*read=*/true, /*written=*/false);
  Tensor into = aliases.to_cpu(self, /*read=*/false, /*written=*/true);
  if (self.device() != source.device()) Checker::get().order(other, stream);
  Checker::get().issue(stream, "aten::copy_", aliases.uses());
  if (self.device() != source.device()) Checker::get().order(stream, other);
  into.copy_(from);
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView below;
  if (self.numel() == 0 && source.numel() <= 1) return self;
  if (self.is_same(source)) return self;
  if (!self.is_cuda()) {
    TORCH_CHECK(self.is_cpu(), "a simulated GPU copies to and from the CPU, got ", self.device());
    copy_to_host(self, source, non_blocking);
  } else if (!source.is_cuda()) {
    TORCH_CHECK(source.is_cpu(), "a simulated GPU copies to and from the CPU, got ",
                source.device());
    copy_to_device(self, source, non_blocking);
  } else {
    copy_on_devices(self, source);
  }
  return self;
}

Tensor pinned_like(const Tensor& like, at::ScalarType dtype) {
  std::vector<int64_t> strides = like.is_non_overlapping_and_dense()
                                     ? like.strides().vec()
                                     : at::empty_like(like, at::kMeta).strides().vec();
  return at::detail::empty_strided_generic(like.sizes(), strides, host_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::CPU), dtype);
}

Tensor to_copy(const Tensor& self, std::optional<at::ScalarType> dtype,
               std::optional<at::Layout> layout, std::optional<c10::Device> device,
               std::optional<bool>, bool non_blocking, std::optional<at::MemoryFormat> format) {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::Device to = device.value_or(self.device());
  if (to.is_cuda()) to = on_device(to);
  at::TensorOptions options = self.options().dtype(dtype.value_or(self.scalar_type())).device(to);
  at::MemoryFormat kept = format.value_or(at::MemoryFormat::Preserve);
  // PyTorch makes the destination of such a copy pinned by itself.
  bool pins = non_blocking && to.is_cpu() && kept == at::MemoryFormat::Preserve;
  Tensor copy = pins ? pinned_like(self, options.dtype().toScalarType())
                     : at::empty_like(self, options, kept);
  copy.copy_(self, non_blocking);
  return copy;
}

void set_storage(Tensor& self, const c10::Storage& storage, c10::IntArrayRef sizes,
                 c10::IntArrayRef strides, int64_t offset) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
}

std::vector<int64_t> contiguous_strides(c10::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

Tensor& set_from_part(Tensor& self, c10::Storage storage, int64_t offset, c10::IntArrayRef sizes,
                      c10::IntArrayRef strides) {
  std::vector<int64_t> dense = contiguous_strides(sizes);
  set_storage(self, storage, sizes, strides.size() == sizes.size() ? strides : dense, offset);
  return self;
}

Tensor& set_from_storage(Tensor& self, c10::Storage storage) {
  int64_t size = static_cast<int64_t>(storage.nbytes() / self.itemsize());
  set_storage(self, storage, {size}, {1}, 0);
  return self;
}

Tensor& set_from_tensor(Tensor& self, const Tensor& source) {
  set_storage(self, source.storage(), source.sizes(), source.strides(), source.storage_offset());
  return self;
}

Tensor& set_empty(Tensor& self) {
  c10::DeviceGuard guard(self.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, device_allocator(), true);
  set_storage(self, storage, {0}, {1}, 0);
  return self;
}

void record_stream(Tensor& self, Stream stream) {
  c10::impl::VirtualGuardImpl(c10::kCUDA)
      .recordDataPtrOnStream(self.storage().data_ptr(), stream);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy_);
  library.impl("_to_copy", &to_copy);
  library.impl("set_.source_Storage_storage_offset", &set_from_part);
  library.impl("set_.source_Storage", &set_from_storage);
  library.impl("set_.source_Tensor", &set_from_tensor);
  library.impl("set_", &set_empty);
  library.impl("record_stream", &record_stream);
}

}  // namespace simulated_gpu
