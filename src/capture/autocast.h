#pragma once

#include <c10/core/DeviceType.h>

namespace dtorch {

// Has autocast follow the lists of this kind of device. Not while operators are issued.
void register_autocast(c10::DeviceType workers);

}  // namespace dtorch
