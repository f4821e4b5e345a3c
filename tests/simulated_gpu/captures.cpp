#include "captures.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstring>

#include "checker.h"
#include "device.h"

namespace simulated_gpu {
namespace {

struct Captures {
  std::mutex mutex;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, std::shared_ptr<Capture>> by_stream;
  std::atomic<size_t> count{0};
};

Captures& captures() {
  static auto* captures = new Captures();
  return *captures;
}

std::pair<c10::DeviceIndex, c10::StreamId> key_of(c10::Stream stream) {
  return {stream.device_index(), stream.id()};
}

template <class Condition>
void refuse_where(const Condition& condition, const std::string& what) {
  if (captures().count == 0) return;
  std::shared_ptr<Capture> found;
  {
    std::lock_guard guard(captures().mutex);
    for (const auto& [stream, capture] : captures().by_stream) {
      if (condition(*capture)) found = capture;
    }
  }
  if (found != nullptr) found->refuse(what);
}

}  // namespace

MemoryPool::~MemoryPool() {
  for (Block* block : blocks) release_block(block);
}

std::vector<BlockReference> MemoryPool::free_blocks(c10::Stream stream) {
  size_t index = Checker::get().index_of(stream);
  std::lock_guard guard(mutex);
  std::vector<BlockReference> found;
  for (const Block* block : blocks) {
    if (block->allocated_on != index || !Checker::get().has_one_owner(*block)) continue;
    found.push_back({block->data, block->bytes, block->serial, /*write=*/true,
                     "free memory of its pool", "captures"});
  }
  return found;
}

bool Capture::restricts_this_thread() const {
  return mode_ == CaptureMode::kGlobal ||
         (mode_ == CaptureMode::kThreadLocal && thread_ == std::this_thread::get_id());
}

bool Capture::may_end_here() const {
  return mode_ == CaptureMode::kRelaxed || thread_ == std::this_thread::get_id();
}

void Capture::refuse(const std::string& what) {
  require_valid();
  std::string name = Checker::get().name_of(Checker::get().index_of(stream_));
  std::lock_guard guard(mutex_);
  refused_ = what;
  TORCH_CHECK(false, what, " is not permitted while ", name, " is captured for a CUDA graph: "
              "nothing comes of the capture. Do it before the capture, or after");
}

void Capture::require_valid() {
  std::lock_guard guard(mutex_);
  TORCH_CHECK(refused_.empty(), "the capture for a CUDA graph failed before, for ", refused_,
              " is not permitted in it: end it");
}

void Capture::take(Block* block) {
  if (block->bytes == 0) return;
  std::memset(block->data, kUnwritten, block->bytes);
  Checker::get().add_owner(block);
  std::lock_guard guard(mutex_);
  memory_.blocks.push_back(block);
  own_.insert(block);
}

void* Capture::shadow(const void* pointer, size_t bytes) {
  Block* block = bytes == 0 ? nullptr : Checker::get().find_block(pointer);
  if (block == nullptr) return const_cast<void*>(pointer);
  std::lock_guard guard(mutex_);
  c10::Storage& shadow = shadows_[block->serial];
  if (!shadow) {
    shadow = c10::Storage(c10::Storage::use_byte_size_t(), block->bytes, c10::GetCPUAllocator());
    if (own_.count(block)) {
      // Zeros are valid where garbage would not be, as in indices.
      std::memset(shadow.mutable_data(), 0, block->bytes);
    } else {
      std::memcpy(shadow.mutable_data(), block->data, block->bytes);
    }
  }
  return static_cast<char*>(shadow.mutable_data()) +
         (static_cast<const char*>(pointer) - block->data);
}

void Capture::take_shadow(const void* memory, c10::Storage shadow) {
  Block* block = Checker::get().find_block(memory);
  if (block == nullptr) return;
  std::lock_guard guard(mutex_);
  shadows_[block->serial] = std::move(shadow);
}

void Capture::add(RecordedOperator recorded, const std::vector<Use>& uses) {
  std::lock_guard guard(mutex_);
  for (const Use& use : uses) {
    const Block& block = *use.block;
    BlockReference reference{block.data, block.bytes, block.serial, use.write, use.contents,
                             recorded.traits->name};
    auto [found, fresh] = references_.try_emplace(block.serial, reference);
    if (use.write) found->second.write = true;
  }
  operators_.push_back(std::move(recorded));
}

std::vector<BlockReference> Capture::take_references() {
  std::vector<BlockReference> references;
  for (auto& [serial, reference] : references_) references.push_back(std::move(reference));
  references_.clear();
  return references;
}

void Capture::give_blocks(MemoryPool& pool) {
  std::lock_guard guard(pool.mutex);
  pool.blocks.insert(pool.blocks.end(), memory_.blocks.begin(), memory_.blocks.end());
  memory_.blocks.clear();
}

std::shared_ptr<Capture> capture_of(c10::Stream stream) {
  if (captures().count == 0) return nullptr;
  std::lock_guard guard(captures().mutex);
  auto found = captures().by_stream.find(key_of(stream));
  return found == captures().by_stream.end() ? nullptr : found->second;
}

void begin_capture(std::shared_ptr<Capture> capture) {
  c10::Stream stream = capture->stream();
  std::string name = Checker::get().name_of(Checker::get().index_of(stream));
  std::lock_guard guard(captures().mutex);
  auto [found, fresh] = captures().by_stream.try_emplace(key_of(stream), std::move(capture));
  TORCH_CHECK(fresh, name, " is being captured already: end that capture first");
  captures().count = captures().by_stream.size();
}

void end_capture(const Capture& capture) {
  std::lock_guard guard(captures().mutex);
  captures().by_stream.erase(key_of(capture.stream()));
  captures().count = captures().by_stream.size();
}

void refuse_in_capture(c10::Stream stream, const std::string& what) {
  if (std::shared_ptr<Capture> capture = capture_of(stream)) capture->refuse(what);
}

void refuse_in_captures_of(c10::DeviceIndex device, const std::string& what) {
  refuse_where(
      [&](const Capture& capture) { return capture.stream().device_index() == device; }, what);
}

void refuse_in_capture_modes(const std::string& what) {
  refuse_where([](const Capture& capture) { return capture.restricts_this_thread(); }, what);
}

}  // namespace simulated_gpu
