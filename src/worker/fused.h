// Kernels that stand for several pointwise operators, compiled while the job runs (dtorch_mpi/fusion).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "device/driver.h"

namespace dtorch {

// A kernel of a GPU, for so many rows a block, of at most so many columns; of a kernel that reduces nothing, for
// one row of so many elements (dtorch_mpi/fusion/compiler/triton_source.py).
struct DeviceVariant {
  DeviceFunction function;
  uint32_t rows, columns, threads, shared_bytes;
  uint32_t num_scratch;  // addresses of memory for its own use that it takes last, and has no use for
};

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
  std::vector<DeviceVariant> variants;  // of a GPU, in place of functions; in the order of their columns
  std::vector<c10::ScalarType> inputs, numbers, outputs;
  std::vector<Extent> extents, output_extents;

  bool reduces_rows = false;
};

// Where an input that is broadcast has what belongs to element i: at i / every % count, plus count
// times i / (every * count * outer_every) % outer_count.
struct Spread {
  int64_t every = 1, count = 1, outer_every = 1, outer_count = 1;
};

// Makes a kernel known to the operators dtorch::fused... under a number, from the library at `path`,
// which must be whole. Raises std::runtime_error for one that can't be loaded.
void load_fused_kernel(int64_t number, const std::string& path, FusedKernel kernel);
// The same of one for the GPU that is the calling thread's.
void load_device_kernel(int64_t number, c10::DeviceIndex device, FusedKernel kernel);

constexpr c10::DeviceIndex kHost = -1;  // in the place of a GPU's index

const FusedKernel& known_kernel(int64_t number, c10::DeviceIndex device);

}  // namespace dtorch
