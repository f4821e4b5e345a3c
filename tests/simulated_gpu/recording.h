// Operators that are recorded now, and run later.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include <vector>

#include "operators.h"

namespace simulated_gpu {

class Capture;

struct RecordedOperator {
  // What the kernel leaves in memory of its own, and where it goes.
  struct Result {
    size_t index;  // among the storages of the arguments, or among the returned tensors
    char* data;
    size_t bytes;
  };

  const Traits* traits;
  c10::DeviceIndex device;
  // Those on the device are over memory that is not theirs.
  std::vector<c10::IValue> arguments;
  std::vector<Result> moved;
  std::vector<Result> made;
};

// Takes the arguments from the stack and leaves results with the sizes that they will have, in
// memory that is unwritten.
void record(Capture& capture, const Traits& traits, c10::Device device, torch::jit::Stack* stack);

void run_recorded(const RecordedOperator& recorded);

}  // namespace simulated_gpu
