#include "tensor/slot.h"

#include <mutex>

#include "capture/between_graphs.h"
#include "capture/record_queue.h"

namespace dtorch {
namespace {

// Tensors die on any thread.
std::mutex& aliasing_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

}  // namespace

Geometry::Geometry(const at::Tensor& tensor)
    : sizes(tensor.sizes()), strides(tensor.strides()), offset(tensor.storage_offset()),
      dtype(tensor.scalar_type()), conjugate(tensor.is_conj()), negative(tensor.is_neg()) {}

// A number that no other memory has.
static uint64_t new_memory() {
  static std::atomic<uint64_t> threads{0};
  thread_local uint64_t next = threads.fetch_add(1, std::memory_order_relaxed) << 44;
  return next++;
}

Slot::Slot(uint32_t id, uint32_t sharding)
    : id(id), sharding(sharding), home(&RecordQueue::current()), memory(new_memory()) {
  generation = home->generation();
}

void Slot::exchange(Slot& other) {
  std::swap(id, other.id);
  std::swap(sharding, other.sharding);
  std::swap(generation, other.generation);
  std::swap(is_tracked, other.is_tracked);
  std::swap(home, other.home);
  std::swap(memory, other.memory);
  std::swap(imports, other.imports);
}

Slot::~Slot() {
  if (aliasing && aliasing->base) {
    std::lock_guard<std::mutex> guard(aliasing_mutex());
    auto& others = *base().aliasing;
    std::erase(others.views, this);
    others.num_apart -= aliasing->is_apart;
  }
  std::lock_guard<SpinLock> guard(RecordQueue::lock);
  home->free_slot(id, generation);
  for (const auto& import : imports) {
    if (import.generation != import.home->generation()) continue;
    import.home->free_slot(import.id, import.generation);
    --import.home->num_imports;
  }
  BetweenGraphs::get().forget(*this);
}

void add_view(const at::Tensor& base, const at::Tensor& view, bool is_apart) {
  auto& parent = slot_of(base);
  auto& slot = slot_of(view);
  if (parent.sharding == 0) return;
  std::lock_guard<std::mutex> guard(aliasing_mutex());
  if (!parent.aliasing) parent.aliasing = std::make_unique<Aliasing>(base);
  Slot& root = parent.base();
  slot.aliasing = std::make_unique<Aliasing>(view);
  slot.aliasing->base = &root == &parent
      ? base.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr()
      : parent.aliasing->base;
  slot.aliasing->is_apart = is_apart || parent.aliasing->is_apart;
  root.aliasing->views.push_back(&slot);
  root.aliasing->num_apart += slot.aliasing->is_apart;
}

std::vector<std::pair<Slot*, Geometry>> views_of(const Slot& base) {
  std::lock_guard<std::mutex> guard(aliasing_mutex());
  std::vector<std::pair<Slot*, Geometry>> views;
  for (Slot* view : base.aliasing->views) views.emplace_back(view, view->aliasing->geometry);
  return views;
}

void replace_view(Slot& base, Slot* view, Slot& made) {
  std::lock_guard<std::mutex> guard(aliasing_mutex());
  auto& all = *base.aliasing;
  if (std::find(all.views.begin(), all.views.end(), view) == all.views.end()) return;
  view->exchange(made);
  all.num_apart -= view->aliasing->is_apart;
  view->aliasing->is_apart = false;
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

at::Tensor make_tensor(Slot& slot, const Geometry& geometry) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(geometry.dtype),
      c10::Device(kDeviceType, 0));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_backend_meta(c10::intrusive_ptr<c10::BackendMeta>::unsafe_reclaim_from_nonowning(&slot));
  impl->set_sizes_and_strides(geometry.sizes, geometry.strides, geometry.offset);
  impl->set_storage_access_should_throw();
  return tensor;
}

}  // namespace dtorch
