#pragma once

#include <cstdint>
#include <functional>

namespace dtorch {

struct MemoryFigures {
  int64_t bytes, peak;  // of live tensors, and of the process, on the worker that has most
};

// What torch.dtorch does in Python, for those who ask PyTorch's own interfaces.
struct DeviceCalls {
  std::function<void()> synchronize;
  std::function<MemoryFigures()> measure;
  std::function<void()> reset_peak;
};

// Registers the device with PyTorch.
void register_device(DeviceCalls calls);

}  // namespace dtorch
