// What collectives on a device come to. NCCL's wait on streams, not on the host: of one that fails, or never
// ends, nobody is told who does not ask.
#pragma once

#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace dtorch {

// Completed with a c10d::WorkResult once it is known. Unlike the Work it keeps no tensors.
using DeviceResult = c10::intrusive_ptr<c10::ivalue::Future>;
using DeviceResults = std::vector<DeviceResult>;

// Notes what a group's work comes to, if the group is NCCL's: others raise where they are waited for.
inline void note_result(const c10d::Backend& group, c10d::Work& work, DeviceResults* results) {
  if (group.getBackendName() == "nccl") results->push_back(work.getFutureResult());
}

inline const char* device_failure(c10d::WorkResult result) {
  return result == c10d::WorkResult::TIMEOUT
             ? "it did not end within the time that collectives have: some worker did not come to it"
             : "NCCL reports an error of a connection between workers, or of another worker";
}

inline bool has_succeeded(const DeviceResult& result) {
  return result->completed() && static_cast<c10d::WorkResult>(result->value().toInt()) == c10d::WorkResult::SUCCESS;
}

// Why it failed; null where it has not, or not yet.
inline const char* failure_of(const DeviceResult& result) {
  if (!result->completed() || has_succeeded(result)) return nullptr;
  return device_failure(static_cast<c10d::WorkResult>(result->value().toInt()));
}

}  // namespace dtorch
