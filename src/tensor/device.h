#pragma once

#include <functional>

namespace dtorch {

// Registers the device's hooks; `synchronize` is what torch.dtorch.synchronize() does.
void register_device(std::function<void()> synchronize);

}  // namespace dtorch
