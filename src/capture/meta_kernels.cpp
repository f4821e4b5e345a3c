// Meta kernels that PyTorch does not have.
#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace dtorch {
namespace {

// The edges are counted by the arguments; only their values depend on the data.
std::vector<at::Tensor> histogramdd_bin_edges(const at::Tensor& self, at::IntArrayRef bins,
                                              std::optional<at::ArrayRef<double>>,
                                              const std::optional<at::Tensor>&, bool) {
  std::vector<at::Tensor> edges;
  for (int64_t count : bins) edges.push_back(at::empty({count + 1}, self.options()));
  return edges;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("_histogramdd_bin_edges", &histogramdd_bin_edges);
}

}  // namespace dtorch
