// Meta kernels that PyTorch does not have.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
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

at::Tensor binomial(const at::Tensor& count, const at::Tensor&, std::optional<at::Generator>) {
  return at::empty_like(count, at::MemoryFormat::Contiguous);
}

at::Tensor sample_dirichlet(const at::Tensor& alpha, std::optional<at::Generator>) {
  return at::empty_like(alpha, at::MemoryFormat::Contiguous);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("_histogramdd_bin_edges", &histogramdd_bin_edges);
  library.impl("binomial", &binomial);
  library.impl("_sample_dirichlet", &sample_dirichlet);
}

}  // namespace dtorch
