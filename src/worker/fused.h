// Kernels that stand for several pointwise operators, compiled while the job runs (dtorch_mpi/fusion).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace dtorch {

struct FusedKernel {
  // pointers: to inputs, numbers, then outputs. Works out the elements from begin to end.
  using Function = void (*)(void** pointers, int64_t begin, int64_t end);

  Function function = nullptr;
  std::vector<c10::ScalarType> inputs, numbers, outputs;
  std::vector<bool> is_long;  // by input: as long as the outputs, or of one element
};

// Makes a kernel known to the operator dtorch::fused under a number, from the library at `path`,
// which must be whole. Raises std::runtime_error for one that can't be loaded.
void load_fused_kernel(int64_t number, const std::string& path, FusedKernel kernel);

}  // namespace dtorch
