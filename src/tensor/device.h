#pragma once

#include <cstdint>
#include <functional>

namespace dtorch {

struct MemoryFigures {
  int64_t bytes, peak;  // of live tensors, and of the process, on the worker that has most
};

// Registers the device's hooks; `synchronize` is what torch.dtorch.synchronize() does.
void register_device(std::function<void()> synchronize, std::function<MemoryFigures()> measure);

}  // namespace dtorch
