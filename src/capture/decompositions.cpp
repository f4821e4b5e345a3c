// Operators that PyTorch has for this kind of device only in a form of its own (CUDA's, or
// one a backend must bring): each is expressed through operators that workers have.
#include <ATen/ATen.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/ForeachUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/kron_native.h>
#include <ATen/ops/linalg_multi_dot_native.h>
#include <ATen/ops/matmul_native.h>
#include <ATen/ops/svd_native.h>
#include <torch/library.h>

#include "capture/aliases.h"
#include "capture/capture.h"
#include "capture/python_hooks.h"
#include "tensor/slot.h"

namespace dtorch {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool has(const OptionalTensor& tensor) { return tensor && tensor->defined(); }

// ---- attention -------------------------------------------------------------------------------
// "overrideable" makes PyTorch's autograd treat attention as one operator; here it becomes the
// CPU's flash attention. Where that kernel can't (dropout, a bias with gradient, other ranks),
// the decomposed form is taken, as PyTorch does on the CPU.
int64_t choose_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                         const OptionalTensor& bias, double dropout, bool causal,
                         std::optional<double>, bool grouped) {
  const auto dtype = query.scalar_type();
  const bool fits = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && dropout == 0.0 &&
                    (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 ||
                     dtype == at::kHalf) &&
                    key.scalar_type() == dtype && value.scalar_type() == dtype &&
                    query.size(3) == value.size(3) && query.size(3) == key.size(3) &&
                    query.stride(3) == 1 && key.stride(3) == 1 && value.stride(3) == 1 &&
                    query.size(0) == key.size(0) && key.size(0) == value.size(0) &&
                    query.size(1) == key.size(1) && key.size(1) == value.size(1) &&
                    query.numel() > 0 && key.numel() > 0 && !grouped &&
                    at::globalContext().userEnabledFlashSDP() &&
                    !(has(bias) && (bias->requires_grad() || causal));
  return static_cast<int64_t>(fits ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>
attention(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias,
          double dropout, bool causal, bool, std::optional<double> scale) {
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, dropout, causal, bias, scale);
  return {output, logsumexp, Tensor(), Tensor(), query.sym_size(2), key.sym_size(2),
          Tensor(), Tensor(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& bias, std::array<bool, 4>, const Tensor& output, const Tensor& logsumexp,
    const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double dropout, bool causal,
    const Tensor&, const Tensor&, std::optional<double> scale) {
  const auto mask = bias.defined() ? OptionalTensor(bias) : std::nullopt;
  auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, query, key, value, output, logsumexp, dropout, causal, mask, scale);
  return {grad_query, grad_key, grad_value, Tensor()};
}

// ---- random numbers into a given tensor --------------------------------------------------------
using OptionalGenerator = std::optional<at::Generator>;

Tensor& give(const Tensor& made, Tensor& out) {
  return out.resize_(made.sizes()).copy_(made);
}

Tensor& bernoulli_out(const Tensor& self, OptionalGenerator generator, Tensor& out) {
  return out.resize_(self.sizes()).bernoulli_(self, std::move(generator));
}

Tensor& multinomial_out(const Tensor& self, int64_t num_samples, bool replacement,
                        OptionalGenerator generator, Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong, "multinomial expects Long tensor out, got: ",
              out.scalar_type());
  return give(at::multinomial(self, num_samples, replacement, std::move(generator)), out);
}

template <class Mean, class Std>
Tensor& normal_out(Mean mean, Std std, OptionalGenerator generator, Tensor& out) {
  return give(at::normal(mean, std, std::move(generator)), out);
}

Tensor& rrelu_with_noise_out(const Tensor& self, Tensor& noise, const at::Scalar& lower,
                             const at::Scalar& upper, bool training, OptionalGenerator generator,
                             Tensor& out) {
  return give(at::rrelu_with_noise(self, noise, lower, upper, training, std::move(generator)), out);
}

// ---- recurrent cells (Hochreiter and Schmidhuber 1997; Cho et al. 2014) --------------------------
// The workspace holds the activated gates, which is what the backward pass needs.
Tensor with_bias(const Tensor& gates, const OptionalTensor& bias) {
  return has(bias) ? gates + *bias : gates;
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
  auto parts = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  auto in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(),
       out = parts[3].sigmoid();
  auto cy = forget * cx + in * cell;
  auto hy = out * cy.tanh();
  return {hy, cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy,
                                                      const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  if (!has(grad_hy) && !has(grad_cy)) return {};
  auto gates = workspace.chunk(4, 1);
  auto &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  auto tanh_cy = cy.tanh();
  Tensor grad_cell = has(grad_cy) ? *grad_cy : Tensor();
  Tensor grad_out = at::zeros_like(out);
  if (has(grad_hy)) {
    auto through = *grad_hy * out * (1 - tanh_cy * tanh_cy);
    grad_cell = grad_cell.defined() ? grad_cell + through : through;
    grad_out = *grad_hy * tanh_cy * out * (1 - out);
  }
  auto grad_gates = at::cat({grad_cell * cell * in * (1 - in), grad_cell * cx * forget * (1 - forget),
                             grad_cell * in * (1 - cell * cell), grad_out}, 1);
  return {grad_gates, grad_cell * forget, has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const OptionalTensor& input_bias,
                                    const OptionalTensor& hidden_bias) {
  auto input = with_bias(input_gates, input_bias).chunk(3, 1);
  auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  auto reset = (input[0] + hidden[0]).sigmoid(), update = (input[1] + hidden[1]).sigmoid();
  auto fresh = (input[2] + reset * hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  auto saved = workspace.chunk(5, 1);
  auto &reset = saved[0], &update = saved[1], &fresh = saved[2], &hx = saved[3], &hidden = saved[4];
  auto grad_update = grad_hy * (hx - fresh) * update * (1 - update);
  auto grad_fresh = grad_hy * (1 - update) * (1 - fresh * fresh);
  auto grad_reset = grad_fresh * hidden * reset * (1 - reset);
  auto grad_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  auto grad_hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  return {grad_input, grad_hidden, grad_hy * update, has_bias ? grad_input.sum(0) : Tensor(),
          has_bias ? grad_hidden.sum(0) : Tensor()};
}

// ---- what PyTorch does another way for this kind of device -------------------------------------
// What reshape calls where a view serves, on devices that it takes for eager ones: a view is what
// there are sharding rules for.
Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef sizes, c10::SymIntArrayRef) {
  return self.view_symint(sizes);
}

// CUDA counts integers too, and takes this device's callers for its own (transformers' experts).
Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::histc", "");
  const bool counts_integers = c10::isIntegralType(self.scalar_type(), false);
  Stack stack{counts_integers ? self.to(at::kDouble) : self, bins, min, max};
  capture(op, &stack);
  auto counts = stack[0].toTensor();
  return counts_integers ? counts.to(self.scalar_type()) : counts;
}

// PyTorch's makes room in a self that broadcasts, as no other operator in place does. Of a tensor
// that is cut no worker could.
Tensor& addbmm_(Tensor& self, const Tensor& batch1, const Tensor& batch2, const at::Scalar& beta,
                const at::Scalar& alpha) {
  if (batch1.dim() == 3 && batch2.dim() == 3 &&
      self.sizes() != at::IntArrayRef({batch1.size(1), batch2.size(2)})) {
    const auto made = at::addbmm(self, batch1, batch2, beta, alpha);
    return self.resize_(made.sizes()).copy_(made);
  }
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::addbmm_", "");
  Stack stack{self, batch1, batch2, beta, alpha};
  capture(op, &stack);
  return self;
}

// Their scalars are on the CPU for CUDA too.
std::vector<at::Scalar> scalars_of(const Tensor& scalars, size_t count) {
  return at::native::convert_tensor_to_scalar_list(on_workers(scalars) ? read_value(scalars) : scalars,
                                                   static_cast<int64_t>(count));
}

std::vector<Tensor> foreach_addcdiv(at::TensorList self, at::TensorList tensor1,
                                    at::TensorList tensor2, const Tensor& scalars) {
  return at::_foreach_addcdiv(self, tensor1, tensor2, scalars_of(scalars, self.size()));
}
void foreach_addcdiv_(at::TensorList self, at::TensorList tensor1, at::TensorList tensor2,
                      const Tensor& scalars) {
  at::_foreach_addcdiv_(self, tensor1, tensor2, scalars_of(scalars, self.size()));
}
std::vector<Tensor> foreach_addcmul(at::TensorList self, at::TensorList tensor1,
                                    at::TensorList tensor2, const Tensor& scalars) {
  return at::_foreach_addcmul(self, tensor1, tensor2, scalars_of(scalars, self.size()));
}
void foreach_addcmul_(at::TensorList self, at::TensorList tensor1, at::TensorList tensor2,
                      const Tensor& scalars) {
  at::_foreach_addcmul_(self, tensor1, tensor2, scalars_of(scalars, self.size()));
}

// ---- out= that PyTorch writes through views of it ------------------------------------------------
// Views that no shard can carry have it laid out whole: it lies as before again after.
template <class Write>
Tensor& keeping_layout(Tensor& out, Write&& write) {
  if (!on_workers(out)) return write();
  const Laid before{out, slot_of(out).sharding};
  write();
  lay_back({before});
  return out;
}

Tensor& kron_out(const Tensor& self, const Tensor& other, Tensor& out) {
  return keeping_layout(out, [&]() -> Tensor& { return at::native::kron_out(self, other, out); });
}

Tensor& matmul_out(const Tensor& self, const Tensor& other, Tensor& out) {
  return keeping_layout(out, [&]() -> Tensor& { return at::native::matmul_out(self, other, out); });
}

Tensor& multi_dot_out(at::TensorList tensors, Tensor& out) {
  return keeping_layout(out, [&]() -> Tensor& { return at::native::linalg_multi_dot_out(tensors, out); });
}

// PyTorch's turns v around, and back, as a view of itself.
std::tuple<Tensor&, Tensor&, Tensor&> svd_out(const Tensor& self, bool some, bool compute_uv,
                                              Tensor& u, Tensor& s, Tensor& v) {
  if (!compute_uv || !on_workers(v)) return at::native::svd_out(self, some, compute_uv, u, s, v);
  auto turned = at::empty({0}, v.options());
  at::linalg_svd_out(u, s, turned, self, !some);
  const auto made = turned.mH();
  at::native::resize_output(v, made.sizes());
  v.copy_(made);
  return {u, s, v};
}

// "No" keeps TransformerEncoder on its ordinary path, away from nested tensors.
bool nested_tensor_from_mask_left_aligned(const Tensor&, const Tensor&) { return false; }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_scaled_dot_product_fused_attention_overrideable", &attention);
  library.impl("_scaled_dot_product_fused_attention_overrideable_backward", &attention_backward);
  library.impl("bernoulli.out", &bernoulli_out);
  library.impl("multinomial.out", &multinomial_out);
  library.impl("normal.Tensor_float_out", &normal_out<const Tensor&, double>);
  library.impl("normal.float_Tensor_out", &normal_out<double, const Tensor&>);
  library.impl("normal.Tensor_Tensor_out", &normal_out<const Tensor&, const Tensor&>);
  library.impl("rrelu_with_noise.out", &rrelu_with_noise_out);
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", &gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("histc", &histc);
  library.impl("addbmm_", &addbmm_);
  library.impl("_foreach_addcdiv.Tensor", &foreach_addcdiv);
  library.impl("_foreach_addcdiv_.Tensor", &foreach_addcdiv_);
  library.impl("_foreach_addcmul.Tensor", &foreach_addcmul);
  library.impl("_foreach_addcmul_.Tensor", &foreach_addcmul_);
  library.impl("kron.out", &kron_out);
  library.impl("matmul.out", &matmul_out);
  library.impl("linalg_multi_dot.out", &multi_dot_out);
  library.impl("svd.U", &svd_out);
  library.impl("_nested_tensor_from_mask_left_aligned", &nested_tensor_from_mask_left_aligned);
}

}  // namespace dtorch

// PyTorch's registration macro names its own namespace.
namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &dtorch::choose_attention)
}
