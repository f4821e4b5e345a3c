// Which elements of a global tensor a worker's part holds, and the generator that says so.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "random/philox.h"

namespace dtorch {

// One call's numbers, and the part of them that this worker makes.
struct RandomPart {
  PhiloxStream stream;
  // Of the call's first output. Empty sizes on `is_whole`: the part is the global tensor.
  bool is_whole = true;
  std::vector<int64_t> global_sizes;
  std::vector<int64_t> offsets;  // where the part begins, one a dim
};

// What a worker hands to its operators in place of a generator. It has no state: each record that
// draws sets `part`. As a CPU generator it serves operators that have no kernel in this room.
class WorkerGenerator final : public at::CPUGeneratorImpl {
 public:
  RandomPart part;
};

at::Generator new_worker_generator();

// Raises RuntimeError for anything but a worker's generator: these operators are not called by
// programs.
const RandomPart& part_of(const std::optional<at::Generator>& generator);

// A part as runs of elements that are consecutive both in the part and in the global tensor, in
// row-major order.
class Runs {
 public:
  // Raises RuntimeError where a tensor of `sizes` is not within the part's global sizes.
  Runs(c10::IntArrayRef sizes, const RandomPart& part);

  int64_t length() const { return length_; }  // of each run; at least 1
  // The global number of a run's first element.
  int64_t start(int64_t run) const;

 private:
  int64_t length_ = 1;
  std::vector<int64_t> counts_, strides_;  // of the dims that number the runs
  int64_t base_ = 0;
};

}  // namespace dtorch
