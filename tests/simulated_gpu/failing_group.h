// A group that says it is NCCL's, and whose collectives fail behind the issuer's back.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>

namespace simulated_gpu {

// how: "error" or "timeout", what the Work comes to; "group", the group alone knows of a time-out. Of NCCL's,
// both tell: here one at a time, so that neither stands in for the other. "success": nothing fails.
c10::intrusive_ptr<c10d::Backend> failing_group(int rank, int size, const std::string& how);

// Collectives of fewer elements do not fail; at first, all do.
void fail_collectives_from(int64_t elements);

}  // namespace simulated_gpu
