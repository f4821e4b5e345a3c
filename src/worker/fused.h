// Kernels that stand for several pointwise operators, compiled while the job runs (dtorch_mpi/fusion).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace dtorch {

struct FusedKernel {
  // pointers: to inputs, numbers, outputs, then the Spreads of inputs that have one. Works out the
  // elements from begin to end.
  using Function = void (*)(void** pointers, int64_t begin, int64_t end);

  // The same for kernels that reduce rows; of rows from begin to end.
  using RowsFunction = void (*)(void** pointers, int64_t begin, int64_t end, int64_t columns);
  // Of an input: an element for each of the outputs', one for all, spread over them; where rows are
  // reduced, one for each column or each row too. Reduced is an output of one for each row, of
  // fewer dims.
  enum class Extent : uint8_t { kWhole, kOne, kSpread, kRow, kColumn, kReduced };

  Function function = nullptr;
  RowsFunction rows_function = nullptr;
  std::vector<c10::ScalarType> inputs, numbers, outputs;
  std::vector<Extent> extents, output_extents;
};

// Where an input that is broadcast has what belongs to element i: at i / every % count, plus count
// times i / (every * count * outer_every) % outer_count.
struct Spread {
  int64_t every = 1, count = 1, outer_every = 1, outer_count = 1;
};

// Makes a kernel known to the operators dtorch::fused... under a number, from the library at `path`,
// which must be whole. Raises std::runtime_error for one that can't be loaded.
void load_fused_kernel(int64_t number, const std::string& path, FusedKernel kernel);

}  // namespace dtorch
