// Host memory that a device reads and writes while the host goes on.
//
// It comes from the device's own allocator, which hands a block out again once the copies that were
// begun with it are through. So a block may be dropped behind a copy to the device; whoever copies
// from the device waits for an event before reading.
#pragma once

#include <cstring>

#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "device/streams.h"

namespace dtorch {

// A host tensor for copies to and from this type of device.
inline at::Tensor pinned(c10::DeviceType device, at::IntArrayRef sizes, at::IntArrayRef strides,
                         c10::ScalarType dtype) {
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, at::getHostAllocator(device)->allocate(bytes), nullptr, false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

inline at::Tensor pinned_like(c10::DeviceType device, const at::Tensor& tensor) {
  return pinned(device, tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

// A device's tensor on the host. Waits for what the current stream has so far, and nothing else.
inline at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  const auto host = pinned_like(tensor.device().type(), tensor);
  host.copy_(tensor, /*non_blocking=*/true);
  DeviceStreams::wait(DeviceStreams::mark(guard.getStream(tensor.device())));
  return host;
}

constexpr int64_t kStagingBytes = 16 << 20;  // of pinned memory for one piece of a large tensor

// Copies a host tensor into one of a device, of the same sizes, on the current stream; the host goes on
// once it has put the source's content aside.
inline void copy_to_device(const at::Tensor& source, const at::Tensor& target) {
  const auto type = target.device().type();
  if (source.nbytes() <= kStagingBytes) {
    const auto staging = pinned_like(type, target);
    staging.copy_(source);
    target.copy_(staging, /*non_blocking=*/true);
    return;
  }
  // In pieces, so that the device copies one while the host writes the next.
  if (!source.is_contiguous() || !target.is_contiguous()) {
    const auto made = at::empty(target.sizes(), target.options());
    copy_to_device(source.contiguous(), made);
    target.copy_(made);
    return;
  }
  const auto from = source.view({-1}), to = target.view({-1});
  const int64_t step = kStagingBytes / static_cast<int64_t>(source.element_size());
  for (int64_t begin = 0; begin < from.numel(); begin += step) {
    const int64_t length = std::min(step, from.numel() - begin);
    copy_to_device(from.narrow(0, begin, length), to.narrow(0, begin, length));
  }
}

}  // namespace dtorch
