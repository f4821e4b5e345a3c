// Captures of graphs under way, what they refuse, and the memory that is the graphs' own.
#pragma once

#include <c10/core/Stream.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "aliases.h"
#include "recording.h"

namespace simulated_gpu {

constexpr int kUnwritten = 0xAB;  // what is in a graph's memory before a replay

// Blocks that are handed out to nobody else while a graph of the pool is there.
struct MemoryPool {
  ~MemoryPool();
  // Those of no tensor any more: later graphs captured from the stream they were made on have them
  // too.
  std::vector<BlockReference> free_blocks(c10::Stream stream);

  std::mutex mutex;
  std::vector<Block*> blocks;
};

// As cudaStreamCaptureMode.
enum class CaptureMode { kGlobal, kThreadLocal, kRelaxed };

class Capture final : public Shadows {
 public:
  Capture(c10::Stream stream, CaptureMode mode) : stream_(stream), mode_(mode) {}

  c10::Stream stream() const { return stream_; }
  // Whether the calling thread must not call what could disturb a capture, as a query of an event.
  bool restricts_this_thread() const;
  bool may_end_here() const;

  // Raises, and nothing comes of the capture.
  [[noreturn]] void refuse(const std::string& what);
  void require_valid();

  // A block that was allocated by the capture.
  void take(Block* block);
  void* shadow(const void* pointer, size_t bytes) override;
  void take_shadow(const void* memory, c10::Storage shadow) override;

  void add(RecordedOperator recorded, const std::vector<Use>& uses);

  // What has been captured; each is left empty.
  std::vector<RecordedOperator> take_operators() { return std::move(operators_); }
  std::vector<BlockReference> take_references();
  void give_blocks(MemoryPool& pool);

 private:
  c10::Stream stream_;
  CaptureMode mode_;
  std::thread::id thread_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::string refused_;
  MemoryPool memory_;
  std::unordered_set<const Block*> own_;
  std::map<uint64_t, c10::Storage> shadows_;           // by the block's serial number
  std::map<uint64_t, BlockReference> references_;  // by the block's serial number
  std::vector<RecordedOperator> operators_;
};

// Null where the stream is not captured.
std::shared_ptr<Capture> capture_of(c10::Stream stream);
void begin_capture(std::shared_ptr<Capture> capture);
void end_capture(const Capture& capture);

// Raise if the stream, or any of the device, is captured; or if a capture is of a mode that
// restricts the calling thread.
void refuse_in_capture(c10::Stream stream, const std::string& what);
void refuse_in_captures_of(c10::DeviceIndex device, const std::string& what);
void refuse_in_capture_modes(const std::string& what);

}  // namespace simulated_gpu
