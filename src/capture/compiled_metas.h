// PyTorch's compiled meta kernels, of operators for which its dispatcher has ones in Python.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/operator_name.h>

namespace dtorch {

// nullptr for an operator that has none here. The first call of one in Python imports PyTorch's
// compiler, which takes more than a second of a small program, and each costs ten times as much.
const c10::KernelFunction* compiled_meta(const c10::OperatorName& name);

}  // namespace dtorch
