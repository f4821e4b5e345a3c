#include "graphs.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <cstring>

#include "checker.h"
#include "device.h"

namespace simulated_gpu {
namespace {

std::atomic<uint64_t> pools_made{0};

// The pool of that handle, while a graph has it.
std::shared_ptr<MemoryPool> find_pool(c10::MempoolId_t id) {
  static auto* pools = new std::map<c10::MempoolId_t, std::weak_ptr<MemoryPool>>();
  static std::mutex mutex;
  std::lock_guard guard(mutex);
  std::weak_ptr<MemoryPool>& known = (*pools)[id];
  std::shared_ptr<MemoryPool> pool = known.lock();
  if (pool == nullptr) known = pool = std::make_shared<MemoryPool>();
  return pool;
}

}  // namespace

c10::MempoolId_t new_pool_handle() { return {0, ++pools_made}; }

void Graph::capture_begin(c10::MempoolId_t pool, CaptureMode mode) {
  TORCH_CHECK(!is_captured_ && capture_ == nullptr, "This CUDAGraph instance already owns a "
              "captured graph. To capture a new graph, create a new instance.");
  device_ = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index();
  c10::Stream stream = current_stream(device_);
  TORCH_CHECK(stream.id() != 0, "CUDA graphs must be captured on a non-default stream. (However, "
              "after capture, it's ok to replay them on the default stream.)");
  auto capture = std::make_shared<Capture>(stream, mode);
  begin_capture(capture);
  capture_ = std::move(capture);
  pool_id_ = pool != c10::MempoolId_t{0, 0} ? pool : c10::MempoolId_t{++pools_made, 0};
  pool_ = find_pool(pool_id_);
  reused_ = pool_->free_blocks(stream);
}

void Graph::capture_end() {
  TORCH_CHECK(capture_ != nullptr, "capture_end() was called without capture_begin()");
  TORCH_CHECK(current_stream(device_) == capture_->stream(),
              "Capture must end on the same stream it began on.");
  TORCH_CHECK(capture_->may_end_here(), "a capture must end on the thread that it began on, but "
              "for the capture_error_mode 'relaxed'");
  std::shared_ptr<Capture> capture = std::move(capture_);
  end_capture(*capture);
  try {
    capture->require_valid();
  } catch (...) {
    reset();
    throw;
  }
  operators_ = capture->take_operators();
  references_ = capture->take_references();
  references_.insert(references_.end(), reused_.begin(), reused_.end());
  capture->give_blocks(*pool_);
  is_captured_ = true;
}

void Graph::replay() {
  TORCH_CHECK(is_captured_, "Called CUDAGraph::replay without a preceding successful capture.");
  c10::DeviceGuard guard(c10::Device(c10::kCUDA, device_));
  c10::Stream stream = current_stream(device_);
  refuse_in_capture(stream, "replaying a graph");
  std::vector<Use> uses = Checker::get().own(references_, "a CUDA graph");
  if (uses.size() < references_.size()) return;
  MemoryPool in_use;
  for (const Use& use : uses) in_use.blocks.push_back(use.block);
  Checker::get().issue(stream, "a CUDA graph", uses);
  for (const BlockReference& block : reused_) std::memset(block.data, kUnwritten, block.bytes);
  for (const RecordedOperator& recorded : operators_) run_recorded(recorded);
}

void Graph::reset() {
  if (capture_ != nullptr) end_capture(*capture_);
  capture_ = nullptr;
  is_captured_ = false;
  operators_.clear();
  reused_.clear();
  references_.clear();
  pool_ = nullptr;
}

c10::MempoolId_t Graph::pool() const {
  TORCH_CHECK(is_captured_ || capture_ != nullptr,
              "Called CUDAGraph::pool() without a preceding successful capture.");
  return pool_id_;
}

void simulated_gpu_replay(void* graph) { static_cast<Graph*>(graph)->replay(); }

}  // namespace simulated_gpu
