// Operators whose value on shards takes several operators. Which calls need it is decided in
// dtorch_mpi/sharding/decompositions.py; that it is done here keeps Python out of a cache hit.
#include "capture/sharded_decompositions.h"

#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/stack.h>

#include <cmath>

namespace dtorch {
namespace {

using at::Tensor;

// The mean as sum over weight: shards may count different numbers of targets.
template <bool is_2d>
void nll_loss_forward(Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 5);
  const auto weight = arguments[2].toOptional<Tensor>();
  const auto forward = is_2d ? &at::nll_loss2d_forward : &at::nll_loss_forward;
  auto [total, total_weight] = forward(arguments[0].toTensor(), arguments[1].toTensor(), weight,
                                       at::Reduction::Sum, arguments[4].toInt());
  torch::jit::drop(*stack, 5);
  torch::jit::push(*stack, total / total_weight, total_weight);
}

// The root of the sum of powers: the sum is what shards can add up.
Tensor norm(const Tensor& tensor, const at::Scalar& ord, at::OptionalIntArrayRef dim, bool keepdim,
            std::optional<at::ScalarType> dtype) {
  const auto dims = dim.has_value() ? dim->vec() : std::vector<int64_t>();
  if (ord.toDouble() == 0) {
    auto count = dims.empty() ? (tensor != 0).sum() : (tensor != 0).sum(dims, keepdim);
    return count.to(dtype.value_or(c10::toRealValueType(tensor.scalar_type())));
  }
  if (std::isinf(ord.toDouble())) {
    auto size = tensor.abs();
    if (dtype) size = size.to(*dtype);
    return ord.toDouble() > 0 ? size.amax(dims, keepdim) : size.amin(dims, keepdim);
  }
  return at::linalg__powsum(tensor, ord, dim, keepdim, dtype).pow(1.0 / ord.toDouble());
}

void linalg_vector_norm(Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 5);
  const auto dim = arguments[2].toOptional<std::vector<int64_t>>();
  auto result = norm(arguments[0].toTensor(), arguments[1].toScalar(),
                     dim ? at::OptionalIntArrayRef(*dim) : at::OptionalIntArrayRef(),
                     arguments[3].toBool(), arguments[4].toOptional<at::ScalarType>());
  torch::jit::drop(*stack, 5);
  torch::jit::push(*stack, std::move(result));
}

void foreach_norm(Stack* stack) {
  const auto arguments = torch::jit::last(*stack, 3);
  c10::List<Tensor> norms;
  for (const Tensor& tensor : arguments[0].toTensorVector()) {
    norms.push_back(norm(tensor, arguments[1].toScalar(), std::nullopt, false,
                         arguments[2].toOptional<at::ScalarType>()));
  }
  torch::jit::drop(*stack, 3);
  torch::jit::push(*stack, std::move(norms));
}

}  // namespace

Decomposition sharded_decomposition(const std::string& name) {
  if (name == "aten::nll_loss_forward") return &nll_loss_forward<false>;
  if (name == "aten::nll_loss2d_forward") return &nll_loss_forward<true>;
  if (name == "aten::linalg_vector_norm") return &linalg_vector_norm;
  if (name == "aten::_foreach_norm") return &foreach_norm;
  TORCH_INTERNAL_ASSERT(false, "no decomposition of ", name);
}

}  // namespace dtorch
