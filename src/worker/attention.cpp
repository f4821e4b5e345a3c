// Attention on accelerators, in the place of the CPU's flash attention, by whose name the program's records
// have it: with CUDA's own kernels where they fit, else by the definition.
//
// Flash attention: Dao, "FlashAttention-2", 2023, here in PyTorch's kernel; efficient attention: Rabe and
// Staats, "Self-attention does not need O(n^2) memory", 2021, in the same.
#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>

#include "random/adopt.h"

namespace dtorch {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

enum class Form { kFlash, kEfficient, kDefinition };

// The rows of a mask have to begin at multiples of 16 elements.
bool fits_efficient(const Tensor& mask, const Tensor& query) {
  if (mask.scalar_type() != query.scalar_type() || mask.stride(-1) != 1 || mask.size(-1) % 16 != 0) return false;
  for (int64_t dim = 0; dim < mask.dim() - 1; ++dim) {
    if (mask.size(dim) > 1 && mask.stride(dim) % 16 != 0) return false;
  }
  return true;
}

// What PyTorch's kernels take on any card (ATen/native/transformers/cuda/sdp_utils.cpp), of what PyTorch itself
// chooses on this one.
Form form_for(const Tensor& query, const Tensor& key, const Tensor& value, bool causal, const OptionalTensor& mask,
              std::optional<double> scale) {
  if (!query.is_cuda()) return Form::kDefinition;
  const auto chosen = static_cast<at::SDPBackend>(at::_fused_sdp_choice(query, key, value, mask, 0.0, causal, scale));
  if (chosen == at::SDPBackend::math || chosen == at::SDPBackend::error) return Form::kDefinition;
  const auto dtype = query.scalar_type();
  const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
  const int64_t width = query.size(3);
  // Its causal mask has the last query see the last key, where the CPU's has the first see the first. Gradients of
  // wider ones not every card has.
  const bool causal_fits = !causal || query.size(2) == key.size(2);
  if (chosen == at::SDPBackend::flash_attention && is_half && width % 8 == 0 && width <= 192 && !mask && causal_fits) {
    return Form::kFlash;
  }
  const bool is_aligned = width % (is_half ? 8 : 4) == 0;
  const bool mask_fits = !mask || fits_efficient(*mask, query);
  return (is_half || dtype == at::kFloat) && is_aligned && mask_fits ? Form::kEfficient : Form::kDefinition;
}

double scale_of(const Tensor& query, std::optional<double> scale) {
  return scale ? *scale : 1 / std::sqrt(static_cast<double>(query.size(3)));
}

// The weights before the softmax, in the precision that the statistics have.
Tensor scores(const Tensor& query, const Tensor& key, bool causal, const OptionalTensor& mask, double scale) {
  const auto wide = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  auto made = at::matmul(query.to(wide), key.to(wide).transpose(2, 3)).mul_(scale);
  if (mask) {
    made = mask->scalar_type() == at::kBool
               ? made.masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity())
               : made.add_(mask->to(wide));
  }
  if (causal) {
    const auto ahead = at::ones({query.size(2), key.size(2)}, query.options().dtype(at::kBool)).triu_(1);
    made.masked_fill_(ahead, -std::numeric_limits<double>::infinity());
  }
  return made;
}

// Of rows that attend to nothing, zeros.
Tensor weights(const Tensor& scores, const Tensor& logsumexp) {
  return (scores - logsumexp.unsqueeze(-1)).exp_().nan_to_num_(0);
}

OptionalTensor expanded(const OptionalTensor& mask, const Tensor& query, const Tensor& key) {
  if (!mask || !mask->defined()) return std::nullopt;
  return mask->expand({query.size(0), query.size(1), query.size(2), key.size(2)});
}

// In the memory order that the client counts on: the output as the query's, gradients as [batch, length, heads,
// width].
Tensor laid_out(const Tensor& made, const Tensor& model) {
  return made.strides() == model.strides() && made.scalar_type() == model.scalar_type()
             ? made : at::empty_like(model).copy_(made);
}
Tensor gradient(const Tensor& made, const Tensor& of) {
  if (made.transpose(1, 2).is_contiguous() && made.scalar_type() == of.scalar_type()) return made;
  return at::empty({of.size(0), of.size(2), of.size(1), of.size(3)}, of.options()).transpose(1, 2).copy_(made);
}

// As _scaled_dot_product_flash_attention_for_cpu: query, key, value: [batch, heads, length, width]; the
// second result, [batch, heads, length], is the logarithm of each row's sum, which only the gradient
// takes. No dropout.
std::tuple<Tensor, Tensor> attention(const Tensor& query, const Tensor& key, const Tensor& value, double,
                                     bool causal, const OptionalTensor& given, std::optional<double> scale) {
  const auto mask = expanded(given, query, key);
  switch (form_for(query, key, value, causal, mask, scale)) {
    case Form::kFlash: {
      const auto made = at::_scaled_dot_product_flash_attention(query, key, value, 0.0, causal, false, scale);
      return {laid_out(std::get<0>(made), query), std::get<1>(made)};
    }
    case Form::kEfficient: {
      const auto made =
          at::_scaled_dot_product_efficient_attention(query, key, value, mask, true, 0.0, causal, scale);
      // Its rows are as long as suits the kernel.
      return {laid_out(std::get<0>(made), query), std::get<1>(made).narrow(2, 0, query.size(2)).contiguous()};
    }
    default: break;
  }
  const auto raw = scores(query, key, causal, mask, scale_of(query, scale));
  const auto logsumexp = raw.logsumexp({3});
  return {laid_out(at::matmul(weights(raw, logsumexp), value.to(raw.scalar_type())), query), logsumexp};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& output,
    const Tensor& logsumexp, double, bool causal, const OptionalTensor& given, std::optional<double> scale) {
  const auto mask = expanded(given, query, key);
  const auto laid_out = [&](const auto& made) {
    return std::tuple(gradient(std::get<0>(made), query), gradient(std::get<1>(made), key),
                      gradient(std::get<2>(made), value));
  };
  switch (form_for(query, key, value, causal, mask, scale)) {
    case Form::kFlash: {
      const auto none = at::empty({}, at::TensorOptions(at::kLong));
      return laid_out(at::_scaled_dot_product_flash_attention_backward(
          grad, query, key, value, output, logsumexp, Tensor(), Tensor(), query.size(2), key.size(2), 0.0, causal,
          none, none, scale));
    }
    case Form::kEfficient: {
      constexpr int64_t kRows = 32;
      const int64_t rows = (query.size(2) + kRows - 1) / kRows * kRows;
      auto padded = at::full({query.size(0), query.size(1), rows}, std::numeric_limits<double>::infinity(),
                             logsumexp.options());
      padded.narrow(2, 0, query.size(2)).copy_(logsumexp);
      const auto none = at::empty({}, at::TensorOptions(at::kLong));
      return laid_out(at::_scaled_dot_product_efficient_attention_backward(
          grad, query, key, value, mask.value_or(Tensor()), output, padded, none, none, 0.0,
          {true, true, true, false}, causal, scale));
    }
    default: break;
  }
  const double factor = scale_of(query, scale);
  const auto weight = weights(scores(query, key, causal, mask, factor), logsumexp);
  const auto wide = weight.scalar_type();
  const auto grad_wide = grad.to(wide);
  const auto grad_weight = at::matmul(grad_wide, value.to(wide).transpose(2, 3));
  const auto mean = (grad_wide * output.to(wide)).sum({3}, true);
  const auto grad_scores = (grad_weight - mean).mul_(weight).mul_(factor);
  return laid_out(std::tuple(at::matmul(grad_scores, key.to(wide)),
                             at::matmul(grad_scores.transpose(2, 3), query.to(wide)),
                             at::matmul(weight.transpose(2, 3), grad_wide)));
}

}  // namespace

// Names of their own: workers on CPUs keep PyTorch's (kOnAccelerators in worker/definitions.h).
TORCH_LIBRARY_FRAGMENT(dtorch, library) {
  adopt_as(library, "attention", "_scaled_dot_product_flash_attention_for_cpu", &attention);
  adopt_as(library, "attention_backward", "_scaled_dot_product_flash_attention_for_cpu_backward",
           &attention_backward);
}

}  // namespace dtorch
