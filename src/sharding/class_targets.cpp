// Targets of a loss as workers with some of the classes look for them.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace dtorch {
namespace {

using at::Tensor;

// The targets, -1 where one is to be ignored. A worker that does not have a class can't tell
// another worker's from one that there is not, so the range is checked here, with PyTorch's text.
Tensor class_targets(const Tensor& target, int64_t num_classes, int64_t ignore_index) {
  auto wanted = target.masked_fill(target == ignore_index, -1);
  const auto outside = ((target < 0).logical_or_(target >= num_classes))
                           .logical_and_(target != ignore_index);
  if (target.numel() == 0) return wanted;
  if (!target.is_cpu()) {
    at::_assert_async(outside.any().logical_not_(), "Target is out of bounds.");
  } else if (outside.any().item<bool>()) {
    TORCH_CHECK_INDEX(false, "Target ", target.masked_select(outside)[0].item<int64_t>(),
                      " is out of bounds.");
  }
  return wanted;
}

Tensor class_targets_meta(const Tensor& target, int64_t, int64_t) {
  return at::empty_like(target);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dtorch, library) {
  library.def("class_targets(Tensor target, int num_classes, int ignore_index) -> Tensor");
  for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
    library.impl("class_targets", torch::dispatch(key, &class_targets));
  }
  library.impl("class_targets", torch::dispatch(c10::DispatchKey::Meta, &class_targets_meta));
}

}  // namespace dtorch
