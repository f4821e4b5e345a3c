#include "worker/fused.h"

#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <unordered_map>

#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Scalar.h>
#include <torch/library.h>

namespace dtorch {
namespace {

// Of the process; a kernel that is known stays.
struct Kernels {
  std::shared_mutex mutex;
  std::unordered_map<int64_t, std::unique_ptr<FusedKernel>> by_number;

  static Kernels& get() {
    static Kernels* kernels = new Kernels;
    return *kernels;
  }
};

const FusedKernel& known_kernel(int64_t number) {
  auto& kernels = Kernels::get();
  std::shared_lock lock(kernels.mutex);
  auto found = kernels.by_number.find(number);
  TORCH_CHECK(found != kernels.by_number.end(), "fused kernel ", number, " is not loaded on this worker: this is a "
              "fault of dtorch_mpi; leave fusion out of DTORCH_PASSES meanwhile");
  return *found->second;
}

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

void check_input(const FusedKernel& kernel, int64_t number, size_t i, const at::Tensor& input,
                 at::IntArrayRef sizes) {
  const auto extent = kernel.extents[i];
  TORCH_CHECK(input.device().is_cpu() && input.scalar_type() == kernel.inputs[i] &&
                  (extent != FusedKernel::Extent::kWhole || input.sizes() == sizes) &&
                  (extent != FusedKernel::Extent::kOne || input.numel() == 1),
              "input ", i, " of fused kernel ", number, " is ", input.toString(), input.sizes(),
              ": expected ", c10::toString(kernel.inputs[i]), " as the others");
}

// least: sizes that the outputs have at least, where inputs don't say so.
std::vector<at::Tensor> fused(int64_t number, at::TensorList inputs, at::ArrayRef<at::Scalar> numbers,
                              at::IntArrayRef least) {
  const FusedKernel& kernel = known_kernel(number);
  TORCH_CHECK(inputs.size() == kernel.inputs.size() && numbers.size() == kernel.numbers.size(), "fused kernel ",
              number, " takes ", kernel.inputs.size(), " tensors and ", kernel.numbers.size(), " numbers, got ",
              inputs.size(), " and ", numbers.size());
  using Extent = FusedKernel::Extent;
  at::DimVector sizes(least);
  for (const auto& input : inputs) sizes = at::infer_size_dimvector(sizes, input.sizes());
  std::vector<at::Tensor> kept(inputs.begin(), inputs.end());
  std::vector<Spread> spreads;
  std::vector<void*> pointers;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Extent extent = kernel.extents[i];
    check_input(kernel, number, i, inputs[i], sizes);
    if (extent == Extent::kSpread) {
      spreads.push_back(spread_over(&kept[i], sizes));
    } else {
      kept[i] = inputs[i].contiguous();
    }
    pointers.push_back(const_cast<void*>(kept[i].const_data_ptr()));
  }
  std::vector<int64_t> values(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    put_number(numbers[i], kernel.numbers[i], &values[i]);
    pointers.push_back(&values[i]);
  }
  std::vector<at::Tensor> outputs;
  for (const auto dtype : kernel.outputs) {
    outputs.push_back(at::empty(sizes, at::TensorOptions(dtype)));
    pointers.push_back(outputs.back().data_ptr());
  }
  for (auto& spread : spreads) pointers.push_back(&spread);
  // In parts as TensorIterator makes them: what is left over at the end of each comes out alike.
  at::parallel_for(0, c10::multiply_integers(sizes), at::internal::GRAIN_SIZE, [&](int64_t begin, int64_t end) {
    kernel.function(pointers.data(), begin, end);
  });
  return outputs;
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
  const FusedKernel& kernel = known_kernel(number);
  TORCH_CHECK(kernel.rows_function != nullptr && inputs.size() == kernel.inputs.size() &&
                  numbers.size() == kernel.numbers.size(),
              "fused kernel ", number, " got ", inputs.size(), " tensors and ", numbers.size(), " numbers: expected ",
              kernel.inputs.size(), " and ", kernel.numbers.size(), ", of a kernel that reduces rows");
  using Extent = FusedKernel::Extent;
  at::DimVector sizes;
  for (const auto& input : inputs) sizes = at::infer_size_dimvector(sizes, input.sizes());
  const int64_t first_column = static_cast<int64_t>(sizes.size()) - dims;
  TORCH_CHECK(first_column >= 0, "a fused kernel reduces ", dims, " dims of ", sizes);
  const at::IntArrayRef leading(sizes.data(), first_column);
  at::DimVector kept(sizes);
  std::fill(kept.begin() + first_column, kept.end(), 1);
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < kernel.outputs.size(); ++i) {
    const Extent extent = kernel.output_extents[i];
    const at::IntArrayRef own = extent == Extent::kWhole ? sizes : extent == Extent::kColumn ? kept : leading;
    outputs.push_back(at::empty(own, at::TensorOptions(kernel.outputs[i])));
  }
  const int64_t rows = c10::multiply_integers(leading);
  if (rows == 0) return outputs;
  const int64_t columns = c10::multiply_integers(sizes) / rows;
  TORCH_CHECK(columns > 0, "a fused kernel reduces rows without elements");
  std::vector<at::Tensor> contiguous;
  std::vector<void*> pointers;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Extent extent = kernel.extents[i];
    check_input(kernel, number, i, inputs[i], sizes);
    const bool is_one_for_each = extent == Extent::kRow || extent == Extent::kColumn;
    contiguous.push_back(is_one_for_each ? one_for_each(inputs[i], sizes, first_column, extent == Extent::kColumn)
                                         : inputs[i].contiguous());
    pointers.push_back(const_cast<void*>(contiguous.back().const_data_ptr()));
  }
  std::vector<int64_t> values(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    put_number(numbers[i], kernel.numbers[i], &values[i]);
    pointers.push_back(&values[i]);
  }
  for (auto& output : outputs) pointers.push_back(output.data_ptr());
  const int64_t grain = std::max<int64_t>(1, at::internal::GRAIN_SIZE / columns);
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    kernel.rows_function(pointers.data(), begin, end, columns);
  });
  return outputs;
}

// A pointwise kernel for lists of tensors, of which the elements at one place belong together. The kernel's
// first inputs are written to, and are its outputs. listed: by number, whether there is one for
// each place.
void fused_lists(int64_t number, int64_t length, at::TensorList written, at::TensorList read,
                 at::ArrayRef<at::Scalar> numbers, const c10::List<bool>& listed) {
  const FusedKernel& kernel = known_kernel(number);
  const size_t num_written = kernel.outputs.size(), num_inputs = kernel.inputs.size();
  size_t num_numbers = 0;
  for (size_t i = 0; i < listed.size(); ++i) num_numbers += listed[i] ? length : 1;
  TORCH_CHECK(length > 0 && written.size() == num_written * length && num_inputs >= num_written &&
                  read.size() == (num_inputs - num_written) * length && listed.size() == kernel.numbers.size() &&
                  numbers.size() == num_numbers,
              "fused kernel ", number, " takes ", num_inputs, " lists of ", length, " tensors, and ",
              kernel.numbers.size(), " numbers");
  std::vector<at::Tensor> kept(num_inputs);
  std::vector<int64_t> values(listed.size());
  std::vector<void*> pointers(num_inputs + listed.size() + num_written);
  for (int64_t place = 0; place < length; ++place) {
    for (size_t i = 0; i < num_inputs; ++i) {
      const auto& tensor = i < num_written ? written[i * length + place] : read[(i - num_written) * length + place];
      const auto& model = written.empty() ? tensor : written[place];
      TORCH_CHECK(tensor.device().is_cpu() && tensor.scalar_type() == kernel.inputs[i] &&
                      tensor.sizes() == model.sizes() && (i >= num_written || tensor.is_contiguous()),
                  "input ", i, " of fused kernel ", number, " is ", tensor.toString(), tensor.sizes(),
                  ": expected ", c10::toString(kernel.inputs[i]), " as the others");
      kept[i] = tensor.contiguous();
      pointers[i] = const_cast<void*>(kept[i].const_data_ptr());
    }
    size_t next = 0;
    for (size_t i = 0; i < listed.size(); ++i) {
      put_number(numbers[next + (listed[i] ? place : 0)], kernel.numbers[i], &values[i]);
      pointers[num_inputs + i] = &values[i];
      next += listed[i] ? length : 1;
    }
    for (size_t i = 0; i < num_written; ++i) pointers[num_inputs + listed.size() + i] = pointers[i];
    at::parallel_for(0, kept[0].numel(), at::internal::GRAIN_SIZE, [&](int64_t begin, int64_t end) {
      kernel.function(pointers.data(), begin, end);
    });
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

void load_fused_kernel(int64_t number, const std::string& path, FusedKernel kernel) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* function = library == nullptr ? nullptr : dlsym(library, "dtorch_fused");
  void* rows_function = library == nullptr ? nullptr : dlsym(library, "dtorch_fused_rows");
  if (function == nullptr && rows_function == nullptr) {
    const char* error = dlerror();
    throw std::runtime_error("loading " + path + ": " + (error != nullptr ? error : "no dtorch_fused in it"));
  }
  kernel.function = reinterpret_cast<FusedKernel::Function>(function);
  kernel.rows_function = reinterpret_cast<FusedKernel::RowsFunction>(rows_function);
  auto& kernels = Kernels::get();
  std::unique_lock lock(kernels.mutex);
  auto& place = kernels.by_number[number];
  // A worker of this process may be about to call the one that is there.
  if (!place) place = std::make_unique<FusedKernel>(std::move(kernel));
}

}  // namespace dtorch
