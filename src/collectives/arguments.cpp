#include "collectives/arguments.h"

#include <numeric>

#include "collectives/reduction.h"

namespace dtorch {

void check_tensor(const Caller& caller, const at::Tensor& tensor, const char* role) {
  TORCH_CHECK_VALUE(tensor.defined(), caller.text(), role, " is an undefined tensor");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, caller.text(), role, " has layout ",
                    tensor.layout(), ", expected a dense (strided) tensor; call to_dense() first");
  TORCH_CHECK_VALUE(tensor.device() == caller.device, caller.text(), role, " is on ",
                    tensor.device(), ", expected ",
                    caller.device.is_cpu() ? "a CPU tensor; NCCL serves tensors on GPUs"
                                           : "one on " + caller.device.str());
}

void check_tensors(const Caller& caller, const std::vector<at::Tensor>& tensors,
                   const char* role) {
  TORCH_CHECK_VALUE(!tensors.empty(), caller.text(), "got no ", role, ", expected at least one");
  for (const at::Tensor& tensor : tensors) {
    check_tensor(caller, tensor, role);
    TORCH_CHECK_TYPE(tensor.scalar_type() == tensors[0].scalar_type(), caller.text(), role,
                     " mixes ", tensors[0].scalar_type(), " and ", tensor.scalar_type(),
                     ", expected one dtype; issue one collective for each dtype");
  }
}

const at::Tensor& only_tensor(const Caller& caller, const std::vector<at::Tensor>& tensors,
                              const char* role) {
  TORCH_CHECK_VALUE(tensors.size() == 1, caller.text(), "got ", tensors.size(), " tensors as ",
                    role, ", expected 1: a member has one device");
  check_tensor(caller, tensors[0], role);
  return tensors[0];
}

const std::vector<at::Tensor>& one_for_each_member(
    const Caller& caller, const std::vector<std::vector<at::Tensor>>& lists, const char* role) {
  TORCH_CHECK_VALUE(lists.size() == 1, caller.text(), "got ", lists.size(), " lists as ", role,
                    ", expected 1: a member has one device");
  TORCH_CHECK_VALUE(lists[0].size() == static_cast<size_t>(caller.size), caller.text(), "got ",
                    lists[0].size(), " tensors as ", role, ", expected ", caller.size,
                    ", one for each member");
  check_tensors(caller, lists[0], role);
  return lists[0];
}

void check_same_dtype(const Caller& caller, const at::Tensor& output, const at::Tensor& input) {
  TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type(), caller.text(), "output is ",
                   output.scalar_type(), " but input is ", input.scalar_type(),
                   "; expected one dtype");
}

void check_same_shape(const Caller& caller, const at::Tensor& got, const char* got_role,
                      const at::Tensor& expected, const char* expected_role) {
  TORCH_CHECK_VALUE(got.sizes() == expected.sizes(), caller.text(), got_role, " has shape ",
                    got.sizes(), ", expected ", expected.sizes(), " as ", expected_role);
}

void check_whole(const Caller& caller, const at::Tensor& whole, const char* whole_role,
                 const at::Tensor& part, const char* part_role) {
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * caller.size, caller.text(), whole_role,
                    " has shape ", whole.sizes(), " (", whole.numel(), " elements), expected ",
                    caller.size, " times the ", part.numel(), " elements of ", part_role,
                    " with shape ", part.sizes());
}

void check_reducible(const Caller& caller, Reduce op, at::ScalarType dtype) {
  TORCH_CHECK_TYPE(is_reducible(op, dtype), caller.text(), "cannot reduce ", dtype, " with ",
                   reduce_name(op),
                   "; expected SUM or PRODUCT, MIN or MAX for what has an order, AVG for floating "
                   "or complex numbers, BAND, BOR or BXOR for integers or bool");
}

void check_member(const Caller& caller, int64_t rank, const char* role) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < caller.size, caller.text(), role, " is ", rank,
                    ", expected a rank from 0 to ", caller.size - 1);
}

std::vector<int64_t> split_counts(const Caller& caller, const at::Tensor& tensor,
                                  const std::vector<int64_t>& split_sizes, const char* role) {
  if (split_sizes.empty()) {
    TORCH_CHECK_VALUE(tensor.dim() > 0 && tensor.size(0) % caller.size == 0, caller.text(), role,
                      " has shape ", tensor.sizes(), ", expected a dim 0 that ", caller.size,
                      " members divide; or pass split sizes");
    return std::vector<int64_t>(caller.size, tensor.numel() / caller.size);
  }
  TORCH_CHECK_VALUE(split_sizes.size() == static_cast<size_t>(caller.size), caller.text(), "got ",
                    split_sizes.size(), " split sizes for ", role, ", expected ", caller.size,
                    ", one for each member");
  const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  int64_t sum = 0;
  for (int64_t split : split_sizes) {
    TORCH_CHECK_VALUE(split >= 0, caller.text(), "split size ", split, " for ", role,
                      " is negative");
    sum += split;
  }
  TORCH_CHECK_VALUE(sum == rows, caller.text(), "split sizes for ", role, " sum to ", sum,
                    ", expected ", rows, ", its size of dim 0");
  const int64_t row = rows > 0 ? tensor.numel() / rows : 0;
  std::vector<int64_t> counts;
  for (int64_t split : split_sizes) counts.push_back(split * row);
  return counts;
}

}  // namespace dtorch
