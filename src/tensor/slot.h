// What makes a storage-less torch.Tensor stand for a tensor on the workers.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

namespace dtorch {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

// A tensor as PyTorch describes it: sizes, strides and where it begins in the memory that it
// shares with others, in its own elements.
struct Geometry {
  explicit Geometry(const at::Tensor& tensor);

  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset;
  c10::ScalarType dtype;
  bool conjugate, negative;
};

struct Slot;
class RecordQueue;

// The slot of another graph than a tensor's own that holds it too.
struct Import {
  RecordQueue* home;
  uint32_t generation;
  uint32_t id;
};

// What a sharded tensor and its views know of each other. A view that its base's layout can't
// carry is a copy on the workers, apart from the others, until somebody writes to one of them.
struct Aliasing {
  explicit Aliasing(const at::Tensor& tensor) : geometry(tensor) {}

  Geometry geometry;
  c10::intrusive_ptr<c10::BackendMeta> base;  // a view's; null for the base
  std::vector<Slot*> views;                   // the base's, those alive
  size_t num_apart = 0;                       // how many of these are copies
  bool is_apart = false;
};

// Numbers the workers' tensor and its sharding. Shared by a tensor and its detached
// copies; when the last reference goes, the workers are told to free the slot.
struct Slot final : c10::BackendMeta {
  // Of the graph that this thread's operators go to.
  Slot(uint32_t id, uint32_t sharding);
  ~Slot() override;

  uint32_t id;
  uint32_t sharding;  // 0: replicated on the default mesh
  uint32_t generation;  // of the workers that hold it
  bool is_tracked = false;  // counted in capture/between_graphs.h
  RecordQueue* home;        // the graph whose slot it is
  uint64_t memory;          // what it shares with views of the same memory, and with nothing else
  std::vector<Import> imports;
  std::unique_ptr<Aliasing> aliasing;  // null where the tensor has no views, or is not sharded

  bool is_alone() const { return !aliasing || (!aliasing->base && aliasing->views.empty()); }
  // The tensor whose memory this one shares: itself, if it is no view.
  Slot& base() { return aliasing && aliasing->base ? static_cast<Slot&>(*aliasing->base) : *this; }
  bool has_views_apart() { return aliasing && base().aliasing->num_apart > 0; }
  // Each stands for what the other did; what views know of them stays.
  void exchange(Slot& other);
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

// Notes that `view` shares `base`'s memory, or, if it is apart, ought to. Nothing can come
// between tensors that every worker has whole: those are left out.
void add_view(const at::Tensor& base, const at::Tensor& view, bool is_apart);
// The live views of a base, with what each is.
std::vector<std::pair<Slot*, Geometry>> views_of(const Slot& base);
// Puts what `made` numbers in the place of what the view does, if the view is still alive.
void replace_view(Slot& base, Slot* view, Slot& made);

// A tensor that has metadata and a slot and no storage.
at::Tensor make_tensor(uint32_t slot, uint32_t sharding, c10::ScalarType dtype,
                       c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);

// Another tensor of the same slot.
at::Tensor make_tensor(Slot& slot, const Geometry& geometry);

}  // namespace dtorch
