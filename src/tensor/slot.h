// What makes a storage-less torch.Tensor stand for a tensor on the workers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

namespace dtorch {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

// Numbers the workers' tensor and its sharding. Shared by a tensor and its detached
// copies; when the last reference goes, the workers are told to free the slot.
struct Slot final : c10::BackendMeta {
  Slot(uint32_t id, uint32_t sharding) : id(id), sharding(sharding) {}
  ~Slot() override;

  uint32_t id;
  uint32_t sharding;  // 0: replicated on the default mesh
};

// Raises for another than dtorch:0.
void check_device(c10::Device device);

inline bool on_workers(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDeviceType;
}

inline Slot& slot_of(const at::Tensor& tensor) {
  auto* meta = tensor.unsafeGetTensorImpl()->get_backend_meta();
  TORCH_CHECK(meta != nullptr, "a dtorch tensor without a slot: it was made by code that "
              "bypasses the dispatcher; make it with torch.empty(..., device='dtorch')");
  return *static_cast<Slot*>(meta);
}

// A tensor that has metadata and a slot and no storage.
at::Tensor make_tensor(uint32_t slot, uint32_t sharding, c10::ScalarType dtype,
                       c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);

}  // namespace dtorch
