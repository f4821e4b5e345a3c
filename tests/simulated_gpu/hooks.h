// What PyTorch asks of CUDA as a whole: whether it is there, its generators, its pinned memory.
#pragma once

#include <ATen/core/Generator.h>

namespace simulated_gpu {

// The CPU generator that a CUDA generator draws from.
at::Generator cpu_generator(const at::Generator& generator);

// From now on PyTorch finds CUDA in this process.
void replace_hooks();

}  // namespace simulated_gpu
