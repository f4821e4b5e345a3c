// What kind of device the workers compute on, where capture depends on it.
#pragma once

#include <atomic>

#include <c10/core/DeviceType.h>

namespace dtorch {

inline std::atomic<c10::DeviceType> workers_device{c10::DeviceType::CPU};

}  // namespace dtorch
