// Kernels that come as machine code.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace simulated_gpu {

// module: tests/simulated_gpu/triton_programs.py.
void set_interpreter(pybind11::object module);

}  // namespace simulated_gpu
