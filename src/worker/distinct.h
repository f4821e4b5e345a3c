// Tensors that repeat elements, as those that are expanded.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtorch {

// Each element once.
inline at::Tensor distinct(at::Tensor tensor) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) tensor = tensor.narrow(dim, 0, 1);
  }
  return tensor;
}

}  // namespace dtorch
