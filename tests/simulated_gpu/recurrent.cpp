// Cells of recurrent networks that only a GPU has fused, and its own choices without cuDNN.

#include <ATen/ATen.h>
#include <torch/library.h>

namespace simulated_gpu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using TensorPair = std::tuple<Tensor, Tensor>;
using FiveTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

bool has(const OptionalTensor& tensor) { return tensor && tensor->defined(); }

Tensor plus(const Tensor& gates, const OptionalTensor& bias) {
  return has(bias) ? gates + *bias : gates;
}

// Gates [batch, 4 * hidden] in the order in, forget, cell, out; the workspace holds them activated.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cell, const OptionalTensor& input_bias,
                                             const OptionalTensor& hidden_bias) {
  Tensor gates = plus(input_gates, input_bias) + plus(hidden_gates, hidden_bias);
  std::vector<Tensor> parts = gates.chunk(4, 1);
  Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid();
  Tensor candidate = parts[2].tanh(), out = parts[3].sigmoid();
  Tensor next = forget * cell + in * candidate;
  return {out * next.tanh(), next, at::cat({in, forget, candidate, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(
    const OptionalTensor& grad_hidden, const OptionalTensor& grad_cell, const Tensor& cell,
    const Tensor& next, const Tensor& workspace, bool has_bias) {
  std::vector<Tensor> parts = workspace.chunk(4, 1);
  Tensor in = parts[0], forget = parts[1], candidate = parts[2], out = parts[3];
  Tensor of_hidden = has(grad_hidden) ? *grad_hidden : at::zeros_like(cell);
  Tensor activated = next.tanh();
  Tensor of_next = of_hidden * out * (1 - activated * activated);
  if (has(grad_cell)) of_next = of_next + *grad_cell;
  Tensor of_gates = at::cat({of_next * candidate * in * (1 - in),
                             of_next * cell * forget * (1 - forget),
                             of_next * in * (1 - candidate * candidate),
                             of_hidden * activated * out * (1 - out)}, 1);
  return {of_gates, of_next * forget, has_bias ? of_gates.sum(0) : Tensor()};
}

// Gates [batch, 3 * hidden] in the order reset, update, new.
TensorPair gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hidden,
                    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  std::vector<Tensor> of_input = plus(input_gates, input_bias).chunk(3, 1);
  std::vector<Tensor> of_hidden = plus(hidden_gates, hidden_bias).chunk(3, 1);
  Tensor reset = (of_input[0] + of_hidden[0]).sigmoid();
  Tensor update = (of_input[1] + of_hidden[1]).sigmoid();
  Tensor fresh = (of_input[2] + reset * of_hidden[2]).tanh();
  return {fresh + update * (hidden - fresh),
          at::cat({reset, update, fresh, hidden, of_hidden[2]}, 1)};
}

FiveTensors gru_cell_backward(const Tensor& grad, const Tensor& workspace, bool has_bias) {
  std::vector<Tensor> parts = workspace.chunk(5, 1);
  Tensor reset = parts[0], update = parts[1], fresh = parts[2];
  Tensor of_fresh = grad * (1 - update) * (1 - fresh * fresh);
  Tensor of_update = grad * (parts[3] - fresh) * update * (1 - update);
  Tensor of_reset = of_fresh * parts[4] * reset * (1 - reset);
  Tensor of_input = at::cat({of_reset, of_update, of_fresh}, 1);
  Tensor of_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1);
  return {of_input, of_hidden, grad * update, has_bias ? of_input.sum(0) : Tensor(),
          has_bias ? of_hidden.sum(0) : Tensor()};
}

bool no_cudnn(const Tensor&, const Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) {
  return false;
}

bool no_cudnn_of_tensors(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) {
  return false;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(simulated_gpu, library) {
  for (const char* name : {"_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl",
                           "_thnn_fused_gru_cell", "_thnn_fused_gru_cell_backward"}) {
    auto theirs =
        c10::Dispatcher::singleton().findSchemaOrThrow((std::string("aten::") + name).c_str(), "");
    library.def(theirs.schema().cloneWithName(std::string("simulated_gpu::") + name, ""));
  }
}

TORCH_LIBRARY_IMPL(simulated_gpu, CPU, library) {
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", &gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_use_cudnn_ctc_loss", &no_cudnn);
  library.impl("_use_cudnn_ctc_loss.Tensor", &no_cudnn_of_tensors);
}

}  // namespace simulated_gpu
