#include "tensor/slot.h"

#include "capture/record_queue.h"

namespace dtorch {

Slot::Slot(uint32_t id, uint32_t sharding)
    : id(id), sharding(sharding), generation(RecordQueue::get().generation()) {}

Slot::~Slot() {
  leave_aliases();
  RecordQueue::get().free_slot(id, generation);
}

void check_device(c10::Device device) {
  TORCH_CHECK(device.index() <= 0, "dtorch has one device, dtorch:0, which stands for all "
              "workers; got index ", static_cast<int>(device.index()),
              ". To use a part of the workers, place the tensor on a sub-mesh.");
}

at::Tensor make_tensor(uint32_t slot, uint32_t sharding, c10::ScalarType dtype,
                       c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype),
      c10::Device(kDeviceType, 0));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_backend_meta(c10::make_intrusive<Slot>(slot, sharding));
  impl->set_sizes_and_strides(sizes, strides, offset);
  impl->set_storage_access_should_throw();
  return tensor;
}

}  // namespace dtorch
