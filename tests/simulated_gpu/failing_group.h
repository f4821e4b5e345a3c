// A group that says it is NCCL's, and whose collectives fail behind the issuer's back.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>

namespace simulated_gpu {

// how: "work", the failure is in the Work; "timeout", the group alone knows it.
c10::intrusive_ptr<c10d::Backend> failing_group(int rank, int size, const std::string& how);

}  // namespace simulated_gpu
