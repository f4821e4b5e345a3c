// Graphs of operators, captured from a stream and replayed on any, with the semantics of CUDA's.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>
#include <vector>

#include "captures.h"

namespace simulated_gpu {

// For graphs that have their memory in common; no graph's own.
c10::MempoolId_t new_pool_handle();

// As at::cuda::CUDAGraph.
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { reset(); }

  void capture_begin(c10::MempoolId_t pool, CaptureMode mode);
  void capture_end();
  void replay();
  void reset();
  c10::MempoolId_t pool() const;

 private:
  std::shared_ptr<Capture> capture_;  // while it is under way
  bool is_captured_ = false;
  c10::DeviceIndex device_ = 0;
  c10::MempoolId_t pool_id_{0, 0};
  std::shared_ptr<MemoryPool> pool_;
  std::vector<RecordedOperator> operators_;
  std::vector<BlockReference> reused_;  // as PyTorch may, of what earlier graphs of the pool made
  std::vector<BlockReference> references_;
};

extern "C" void simulated_gpu_replay(void* graph);

}  // namespace simulated_gpu
