#pragma once

#include <functional>

#include "device/memory.h"

namespace dtorch {

// What torch.dtorch does in Python, for those who ask PyTorch's own interfaces.
struct DeviceCalls {
  std::function<void()> synchronize;
  std::function<DeviceMemory()> measure;  // each figure that of the worker where it is largest
  std::function<void()> reset_peak;
  std::function<void()> empty_cache;
};

// Registers the device with PyTorch.
void register_device(DeviceCalls calls);

}  // namespace dtorch
