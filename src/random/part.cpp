#include "random/part.h"

namespace dtorch {

at::Generator new_worker_generator() { return at::make_generator<WorkerGenerator>(); }

const RandomPart& part_of(const std::optional<at::Generator>& generator) {
  const WorkerGenerator* found = nullptr;
  if (generator && generator->defined()) {
    found = dynamic_cast<const WorkerGenerator*>(generator->unsafeGetGeneratorImpl());
  }
  TORCH_CHECK(found != nullptr, "the dtorch:: random operators are executed by workers, with a "
              "worker's generator: call PyTorch's own on a dtorch tensor");
  return found->part;
}

Runs::Runs(c10::IntArrayRef sizes, const RandomPart& part) {
  const c10::IntArrayRef global = part.is_whole ? sizes : c10::IntArrayRef(part.global_sizes);
  bool fits = global.size() == sizes.size();
  for (size_t d = 0; fits && !part.is_whole && d < sizes.size(); ++d) {
    fits = part.offsets[d] >= 0 && part.offsets[d] + sizes[d] <= global[d];
  }
  TORCH_CHECK(fits, "this worker's part has sizes ", sizes, ", which do not fit in ", global,
              " from ", c10::IntArrayRef(part.offsets), " on");
  // Inner dims that the part holds whole belong to the run, and so does the next one.
  size_t dim = sizes.size();
  int64_t stride = 1;
  while (dim > 0) {
    --dim;
    length_ *= sizes[dim];
    if (!part.is_whole) base_ += part.offsets[dim] * stride;
    stride *= global[dim];
    if (sizes[dim] != global[dim]) break;
  }
  counts_.resize(dim);
  strides_.resize(dim);
  while (dim > 0) {
    --dim;
    counts_[dim] = sizes[dim];
    strides_[dim] = stride;
    base_ += part.offsets[dim] * stride;
    stride *= global[dim];
  }
  if (length_ == 0) length_ = 1;
}

int64_t Runs::start(int64_t run) const {
  int64_t at = base_;
  for (size_t dim = counts_.size(); dim-- > 0;) {
    at += run % counts_[dim] * strides_[dim];
    run /= counts_[dim];
  }
  return at;
}

}  // namespace dtorch
