// The operators that call fused kernels.
#include <algorithm>
#include <vector>

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Scalar.h>
#include <torch/library.h>

#include "worker/fused_call.h"

namespace dtorch {
namespace {

using Extent = FusedKernel::Extent;

// What a kernel reads a number from.
void put_number(const at::Scalar& number, c10::ScalarType dtype, int64_t* place) {
  switch (dtype) {
    case c10::kFloat: *reinterpret_cast<float*>(place) = number.to<float>(); return;
    case c10::kDouble: *reinterpret_cast<double*>(place) = number.to<double>(); return;
    case c10::kLong: *place = number.to<int64_t>(); return;
    case c10::kBool: *reinterpret_cast<bool*>(place) = number.to<bool>(); return;
    default: TORCH_CHECK(false, "a fused kernel takes no number of dtype ", dtype);
  }
}

// Where a tensor that is broadcast to `sizes` has its elements; one that is laid out in another way
// is copied. The tensor becomes one of these elements.
Spread spread_over(at::Tensor* tensor, at::IntArrayRef sizes) {
  const at::Tensor expanded = tensor->expand(sizes);
  Spread spread;
  int64_t* factors[] = {&spread.every, &spread.count, &spread.outer_every, &spread.outer_count};
  size_t at = 0;
  int64_t stride = 1;
  for (int64_t dim = expanded.dim() - 1; dim >= 0; --dim) {
    const int64_t size = expanded.size(dim);
    if (size == 1) continue;
    const bool is_own = expanded.stride(dim) != 0;
    if ((at % 2 == 1) != is_own) ++at;
    if (at == 4 && !is_own) break;  // the same again and again
    if (at >= 4 || (is_own && expanded.stride(dim) != stride)) {
      *tensor = expanded.contiguous();
      return {1, std::max<int64_t>(tensor->numel(), 1), 1, 1};
    }
    *factors[at] *= size;
    if (is_own) stride *= size;
  }
  *tensor = expanded;
  return spread;
}

c10::Device device_of(at::TensorList inputs) { return inputs.empty() ? c10::Device(c10::kCPU) : inputs.front().device(); }

const FusedKernel& kernel_for(int64_t number, at::TensorList inputs, size_t num_numbers) {
  const auto device = device_of(inputs);
  const FusedKernel& kernel = known_kernel(number, device.is_cpu() ? kHost : device.index());
  TORCH_CHECK(inputs.size() == kernel.inputs.size() && num_numbers == kernel.numbers.size(), "fused kernel ", number,
              " takes ", kernel.inputs.size(), " tensors and ", kernel.numbers.size(), " numbers, got ", inputs.size(),
              " and ", num_numbers);
  return kernel;
}

void check_input(const FusedKernel& kernel, int64_t number, size_t i, at::TensorList inputs, at::IntArrayRef sizes) {
  const auto& input = inputs[i];
  const auto extent = kernel.extents[i];
  TORCH_CHECK(input.device() == device_of(inputs) && input.scalar_type() == kernel.inputs[i] &&
                  (extent != Extent::kWhole || input.sizes() == sizes) &&
                  (extent != Extent::kOne || input.numel() == 1),
              "input ", i, " of fused kernel ", number, " is ", input.toString(), input.sizes(),
              ": expected ", c10::toString(kernel.inputs[i]), " as the others");
}

std::vector<int64_t> bits_of(const FusedKernel& kernel, at::ArrayRef<at::Scalar> numbers) {
  std::vector<int64_t> bits(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) put_number(numbers[i], kernel.numbers[i], &bits[i]);
  return bits;
}

// least: sizes that the outputs have at least, where inputs don't say so.
std::vector<at::Tensor> fused(int64_t number, at::TensorList inputs, at::ArrayRef<at::Scalar> numbers,
                              at::IntArrayRef least) {
  const FusedKernel& kernel = kernel_for(number, inputs, numbers.size());
  at::DimVector sizes(least);
  for (const auto& input : inputs) sizes = at::infer_size_dimvector(sizes, input.sizes());
  FusedCall call(kernel);
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_input(kernel, number, i, inputs, sizes);
    at::Tensor input = inputs[i];
    if (kernel.extents[i] == Extent::kSpread) call.spreads.push_back(spread_over(&input, sizes));
    call.inputs.push_back(kernel.extents[i] == Extent::kSpread ? input : input.contiguous());
  }
  call.numbers = bits_of(kernel, numbers);
  for (const auto dtype : kernel.outputs) {
    call.outputs.push_back(at::empty(sizes, at::TensorOptions(dtype).device(device_of(inputs))));
  }
  call.run(c10::multiply_integers(sizes));
  return std::move(call.outputs);
}

// One element for each row, or for each column, of a tensor that is broadcast to `sizes`.
at::Tensor one_for_each(const at::Tensor& tensor, at::IntArrayRef sizes, int64_t first_column, bool row) {
  at::Tensor found = tensor.expand(sizes);
  for (int64_t dim = 0; dim < found.dim(); ++dim) {
    if ((dim >= first_column) == row) found = found.narrow(dim, 0, 1);
  }
  return found.contiguous();
}

// The last `dims` dims are a row, which a kernel may reduce.
std::vector<at::Tensor> fused_rows(int64_t number, at::TensorList inputs, at::ArrayRef<at::Scalar> numbers,
                                   int64_t dims) {
  const FusedKernel& kernel = kernel_for(number, inputs, numbers.size());
  TORCH_CHECK(kernel.reduces_rows, "fused kernel ", number, " reduces no rows, expected one that does");
  at::DimVector sizes;
  for (const auto& input : inputs) sizes = at::infer_size_dimvector(sizes, input.sizes());
  const int64_t first_column = static_cast<int64_t>(sizes.size()) - dims;
  TORCH_CHECK(first_column >= 0, "a fused kernel reduces ", dims, " dims of ", sizes);
  const at::IntArrayRef leading(sizes.data(), first_column);
  at::DimVector kept(sizes);
  std::fill(kept.begin() + first_column, kept.end(), 1);
  FusedCall call(kernel);
  for (size_t i = 0; i < kernel.outputs.size(); ++i) {
    const Extent extent = kernel.output_extents[i];
    const at::IntArrayRef own = extent == Extent::kWhole ? sizes : extent == Extent::kColumn ? kept : leading;
    call.outputs.push_back(at::empty(own, at::TensorOptions(kernel.outputs[i]).device(device_of(inputs))));
  }
  const int64_t rows = c10::multiply_integers(leading);
  if (rows == 0) return std::move(call.outputs);
  const int64_t columns = c10::multiply_integers(sizes) / rows;
  TORCH_CHECK(columns > 0, "a fused kernel reduces rows without elements");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Extent extent = kernel.extents[i];
    check_input(kernel, number, i, inputs, sizes);
    const bool is_one_for_each = extent == Extent::kRow || extent == Extent::kColumn;
    call.inputs.push_back(is_one_for_each ? one_for_each(inputs[i], sizes, first_column, extent == Extent::kColumn)
                                          : inputs[i].contiguous());
  }
  call.numbers = bits_of(kernel, numbers);
  call.run_rows(rows, columns);
  return std::move(call.outputs);
}

// A pointwise kernel for lists of tensors, of which the elements at one place belong together. The kernel's
// first inputs are written to, and are its outputs. listed: by number, whether there is one for
// each place.
void fused_lists(int64_t number, int64_t length, at::TensorList written, at::TensorList read,
                 at::ArrayRef<at::Scalar> numbers, const c10::List<bool>& listed) {
  const FusedKernel& kernel = known_kernel(number, kHost);
  const size_t num_written = kernel.outputs.size(), num_inputs = kernel.inputs.size();
  size_t num_numbers = 0;
  for (size_t i = 0; i < listed.size(); ++i) num_numbers += listed[i] ? length : 1;
  TORCH_CHECK(length > 0 && written.size() == num_written * length && num_inputs >= num_written &&
                  read.size() == (num_inputs - num_written) * length && listed.size() == kernel.numbers.size() &&
                  numbers.size() == num_numbers,
              "fused kernel ", number, " takes ", num_inputs, " lists of ", length, " tensors, and ",
              kernel.numbers.size(), " numbers");
  FusedCall call(kernel);
  call.inputs.resize(num_inputs);
  call.numbers.resize(listed.size());
  for (int64_t place = 0; place < length; ++place) {
    for (size_t i = 0; i < num_inputs; ++i) {
      const auto& tensor = i < num_written ? written[i * length + place] : read[(i - num_written) * length + place];
      const auto& model = written.empty() ? tensor : written[place];
      TORCH_CHECK(tensor.device().is_cpu() && tensor.scalar_type() == kernel.inputs[i] &&
                      tensor.sizes() == model.sizes() && (i >= num_written || tensor.is_contiguous()),
                  "input ", i, " of fused kernel ", number, " is ", tensor.toString(), tensor.sizes(),
                  ": expected ", c10::toString(kernel.inputs[i]), " as the others");
      call.inputs[i] = tensor.contiguous();
    }
    size_t next = 0;
    for (size_t i = 0; i < listed.size(); ++i) {
      put_number(numbers[next + (listed[i] ? place : 0)], kernel.numbers[i], &call.numbers[i]);
      next += listed[i] ? length : 1;
    }
    call.outputs.assign(call.inputs.begin(), call.inputs.begin() + num_written);
    call.run(call.inputs[0].numel());
  }
}

TORCH_LIBRARY_FRAGMENT(dtorch, library) {
  library.def("fused_lists(int kernel, int length, Tensor(a!)[] written, Tensor[] read, Scalar[] numbers, "
              "bool[] listed) -> ()",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &fused_lists));
  library.def("fused_rows(int kernel, Tensor[] inputs, Scalar[] numbers, int dims) -> Tensor[]",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &fused_rows));
  library.def("fused(int kernel, Tensor[] inputs, Scalar[] numbers, int[] sizes) -> Tensor[]",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &fused));
}

}  // namespace

}  // namespace dtorch
