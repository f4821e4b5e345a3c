// Looking up rows of a table of which a worker holds some, and adding up their gradient.
//
// `rows` are the numbers of the rows that are there. Given all of them these are embedding and its
// gradient; given some, the result is this worker's addend, or its part of the gradient.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace dtorch {
namespace {

using at::Tensor;

// PyTorch's own error: a worker can't leave it to the lookup, which sees its own rows only.
void check_range(const Tensor& indices, int64_t num_rows) {
  if (indices.numel() == 0) return;
  const auto inside = (indices >= 0).logical_and_(indices < num_rows).all();
  if (indices.is_cpu()) {
    TORCH_CHECK_INDEX(inside.item<bool>(), "index out of range in self");
  } else {
    at::_assert_async(inside, "index out of range in self");
  }
}

// Where each index is among the rows that are there; their count where it is not.
Tensor places(const Tensor& indices, const Tensor& rows) {
  const auto count = rows.size(0);
  if (count == 0) return at::zeros_like(indices);
  auto place = indices - rows.select(0, 0);
  const auto outside = (place < 0).logical_or_(place >= count);
  return place.masked_fill_(outside, count);
}

Tensor embedding_rows(const Tensor& table, const Tensor& indices, const Tensor& rows,
                      int64_t num_rows) {
  check_range(indices, num_rows);
  const auto count = rows.size(0);
  if (count == 0) {
    auto sizes = indices.sizes().vec();
    sizes.push_back(table.size(1));
    return at::zeros(sizes, table.options());
  }
  const auto place = places(indices, rows);
  auto found = at::embedding(table, place.clamp_max(count - 1));
  return found.masked_fill_((place == count).unsqueeze(-1), 0);
}

Tensor embedding_rows_backward(const Tensor& grad, const Tensor& indices, const Tensor& rows,
                               int64_t padding_idx, bool scale_grad_by_freq) {
  const auto count = rows.size(0);
  auto place = places(indices, rows);
  if (padding_idx >= 0) place.masked_fill_(indices == padding_idx, count);
  // One row more, which takes what is not to be added.
  return at::embedding_dense_backward(grad, place, count + 1, count, scale_grad_by_freq)
      .narrow(0, 0, count);
}

Tensor embedding_rows_meta(const Tensor& table, const Tensor& indices, const Tensor&, int64_t) {
  auto sizes = indices.sizes().vec();
  sizes.push_back(table.size(1));
  return at::empty(sizes, table.options());
}

Tensor embedding_rows_backward_meta(const Tensor& grad, const Tensor&, const Tensor& rows, int64_t,
                                    bool) {
  return at::empty({rows.size(0), grad.size(-1)}, grad.options());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dtorch, library) {
  library.def("embedding_rows(Tensor table, Tensor indices, Tensor rows, int num_rows) -> Tensor");
  library.def(
      "embedding_rows_backward(Tensor grad, Tensor indices, Tensor rows, int padding_idx, "
      "bool scale_grad_by_freq) -> Tensor");
  for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
    library.impl("embedding_rows", torch::dispatch(key, &embedding_rows));
    library.impl("embedding_rows_backward", torch::dispatch(key, &embedding_rows_backward));
  }
  library.impl("embedding_rows", torch::dispatch(c10::DispatchKey::Meta, &embedding_rows_meta));
  library.impl("embedding_rows_backward",
               torch::dispatch(c10::DispatchKey::Meta, &embedding_rows_backward_meta));
}

}  // namespace dtorch
