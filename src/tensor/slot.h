// What makes a storage-less torch.Tensor stand for a tensor on the workers.
#pragma once

#include <atomic>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

namespace dtorch {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

// How many slots of live tensors may share memory on the workers.
struct AliasGroup {
  std::atomic<int> live{1};
};

// Numbers the workers' tensor and its sharding. Shared by a tensor and its detached
// copies; when the last reference goes, the workers are told to free the slot.
struct Slot final : c10::BackendMeta {
  Slot(uint32_t id, uint32_t sharding);
  ~Slot() override;

  uint32_t id;
  uint32_t sharding;  // 0: replicated on the default mesh
  const uint32_t generation;  // of the workers that hold it
  std::shared_ptr<AliasGroup> aliases;  // of views and their base; null for others

  // `view` shares this tensor's memory.
  void add_alias(Slot& view) {
    if (!aliases) aliases = std::make_shared<AliasGroup>();
    aliases->live.fetch_add(1, std::memory_order_relaxed);
    view.aliases = aliases;
  }
  bool is_alone() const { return !aliases || aliases->live.load(std::memory_order_relaxed) == 1; }
  void leave_aliases() {
    if (aliases) aliases->live.fetch_sub(1, std::memory_order_relaxed);
    aliases = nullptr;
  }
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
