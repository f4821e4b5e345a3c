// Attention kernels that only a GPU has, as sums on the CPU.
//
// Under a namespace of ours with the schemas of PyTorch's: on the CPU itself there stay none.

#include <ATen/ATen.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

#include <cmath>

namespace simulated_gpu {
namespace {

using at::Tensor;
using c10::SymInt;
using OptionalTensor = std::optional<Tensor>;

constexpr double kMasked = -std::numeric_limits<double>::infinity();

at::ScalarType wide(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

double scale_of(const Tensor& query, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
}

void check(double dropout) {
  TORCH_CHECK_NOT_IMPLEMENTED(dropout == 0, "attention of the simulated GPU has no dropout, got ",
                              dropout);
}

// The real kernel's causal mask, where there are not as many keys as queries, is not the one here.
void check_flash(const Tensor& query, const Tensor& key, bool causal) {
  TORCH_CHECK(!causal || query.size(2) == key.size(2),
              "Flash attention does not support the is_causal flag when seqlen_q != seqlen_k");
}

// Sizes [batch, heads, queries, keys], with what is masked at minus infinity.
Tensor scores(const Tensor& query, const Tensor& key, const OptionalTensor& bias, bool causal,
              double scale) {
  Tensor scores = at::matmul(query.to(wide(query)), key.to(wide(query)).transpose(-2, -1)) * scale;
  if (bias && bias->defined()) scores = scores + bias->to(wide(query));
  if (causal) {
    Tensor later = at::ones({query.size(-2), key.size(-2)}, at::kBool).triu(1);
    scores = scores.masked_fill(later, kMasked);
  }
  return scores;
}

struct Attention {
  Tensor output;     // laid out [batch, queries, heads, head size], as the GPU's kernels do
  Tensor logsumexp;  // [batch, heads, queries]
};

Attention attend(const Tensor& query, const Tensor& key, const Tensor& value,
                 const OptionalTensor& bias, bool causal, double scale) {
  Tensor found = scores(query, key, bias, causal, scale);
  Tensor output = at::matmul(at::softmax(found, -1), value.to(wide(value)));
  output = output.to(query.scalar_type()).transpose(1, 2).contiguous().transpose(1, 2);
  return {output, at::logsumexp(found, {-1}).to(at::kFloat)};
}

struct Gradients {
  Tensor query, key, value, bias;
};

Gradients differentiate(const Tensor& grad, const Tensor& query, const Tensor& key,
                        const Tensor& value, const OptionalTensor& bias, const Tensor& output,
                        const Tensor& logsumexp, bool causal, double scale) {
  at::ScalarType type = wide(query);
  Tensor found = scores(query, key, bias, causal, scale);
  Tensor sums = logsumexp.narrow(-1, 0, query.size(-2)).unsqueeze(-1).to(type);
  Tensor weights = at::exp(found - sums);
  Tensor grad_output = grad.to(type);
  Tensor grad_weights = at::matmul(grad_output, value.to(type).transpose(-2, -1));
  Tensor mean = (grad_output * output.to(type)).sum(-1, /*keepdim=*/true);
  Tensor grad_scores = weights * (grad_weights - mean);
  return {(at::matmul(grad_scores, key.to(type)) * scale).to(query.scalar_type()),
          (at::matmul(grad_scores.transpose(-2, -1), query.to(type)) * scale)
              .to(key.scalar_type()),
          at::matmul(weights.transpose(-2, -1), grad_output).to(value.scalar_type()),
          grad_scores};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias,
    bool compute_logsumexp, double dropout, bool causal, std::optional<double> scale) {
  check(dropout);
  TORCH_CHECK(!bias || bias->scalar_type() == query.scalar_type(),
              "invalid dtype for bias - should match query's dtype");
  Attention found = attend(query, key, value, bias, causal, scale_of(query, scale));
  int64_t queries = query.size(2);
  // Rows of 32 queries, the last filled up, as the real kernel has them.
  Tensor logsumexp = compute_logsumexp
      ? at::constant_pad_nd(found.logsumexp, {0, (32 - queries % 32) % 32},
                            std::numeric_limits<double>::infinity())
      : at::empty({query.size(0), query.size(1), 0}, at::kFloat);
  return {found.output, logsumexp, at::zeros({}, at::kLong), at::zeros({}, at::kLong)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& bias, const Tensor& output, const Tensor& logsumexp, const Tensor&,
    const Tensor&, double dropout, std::array<bool, 4> wanted, bool causal,
    std::optional<double> scale) {
  if (!grad.defined()) return {};
  check(dropout);
  Gradients found = differentiate(grad, query, key, value, bias, output, logsumexp, causal,
                                  scale_of(query, scale));
  bool wants_bias = bias.defined() && wanted[3];
  return {found.query, found.key, found.value,
          wants_bias ? found.bias.sum_to_size(bias.sizes()).to(bias.scalar_type()) : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor> flash(
    const Tensor& query, const Tensor& key, const Tensor& value, double dropout, bool causal,
    bool, std::optional<double> scale) {
  check(dropout);
  TORCH_CHECK(query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16,
              "FlashAttention only support fp16 and bf16 data type");
  check_flash(query, key, causal);
  Attention found = attend(query, key, value, std::nullopt, causal, scale_of(query, scale));
  return {found.output, found.logsumexp, Tensor(), Tensor(), query.size(2), key.size(2),
          at::zeros({2}, at::kUInt64), at::zeros({}, at::kUInt64),
          at::empty({0}, query.options())};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& output, const Tensor& logsumexp, const Tensor&, const Tensor&, SymInt, SymInt,
    double dropout, bool causal, const Tensor&, const Tensor&, std::optional<double> scale) {
  if (!grad.defined()) return {};
  check(dropout);
  check_flash(query, key, causal);
  Gradients found = differentiate(grad, query, key, value, std::nullopt, output, logsumexp, causal,
                                  scale_of(query, scale));
  return {found.query, found.key, found.value};
}

// Which of them F.scaled_dot_product_attention calls.
int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value,
               const OptionalTensor& mask, double dropout, bool, std::optional<double>,
               bool grouped_queries) {
  bool fits = query.dim() == 4 && dropout == 0 && !grouped_queries && query.size(-1) % 8 == 0 &&
              key.size(-1) == value.size(-1);
  bool half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  at::Context& context = at::globalContext();
  if (fits && half && !mask && context.userEnabledFlashSDP()) {
    return static_cast<int64_t>(sdp::SDPBackend::flash_attention);
  }
  if (fits && (half || query.scalar_type() == at::kFloat) && context.userEnabledMemEfficientSDP()) {
    return static_cast<int64_t>(sdp::SDPBackend::efficient_attention);
  }
  TORCH_CHECK(context.userEnabledMathSDP(), "No available kernel. Aborting execution.");
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose);
  library.impl("_fused_sdp_choice", &choose);
}

TORCH_LIBRARY_FRAGMENT(simulated_gpu, library) {
  for (const char* name : {"_scaled_dot_product_efficient_attention",
                           "_scaled_dot_product_efficient_attention_backward",
                           "_scaled_dot_product_flash_attention",
                           "_scaled_dot_product_flash_attention_backward"}) {
    auto theirs =
        c10::Dispatcher::singleton().findSchemaOrThrow((std::string("aten::") + name).c_str(), "");
    library.def(theirs.schema().cloneWithName(std::string("simulated_gpu::") + name, ""));
  }
}

TORCH_LIBRARY_IMPL(simulated_gpu, CPU, library) {
  library.impl("_scaled_dot_product_efficient_attention", &efficient);
  library.impl("_scaled_dot_product_efficient_attention_backward", &efficient_backward);
  library.impl("_scaled_dot_product_flash_attention", &flash);
  library.impl("_scaled_dot_product_flash_attention_backward", &flash_backward);
}

}  // namespace simulated_gpu
