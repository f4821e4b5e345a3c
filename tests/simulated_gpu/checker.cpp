#include "checker.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace simulated_gpu {
namespace {

uint64_t at(const Clock& clock, size_t stream) { return stream < clock.size() ? clock[stream] : 0; }

// One JSON line a violation, at once: the process may be killed.
void report(const std::string& text) {
  const char* file = std::getenv("SIMULATED_GPU_REPORT");
  if (file == nullptr) return;
  std::string escaped;
  for (char letter : text) {
    if (letter == '"' || letter == '\\') escaped += '\\';
    escaped += letter == '\n' ? ' ' : letter;
  }
  std::ofstream(file, std::ios::app) << "{\"process\": " + std::to_string(getpid()) +
                                            ", \"violation\": \"" + escaped + "\"}\n";
}

}  // namespace

void merge(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

std::string thread_name() {
  char name[32] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return std::string(name) + " " + std::to_string(gettid());
}

Checker& Checker::get() {
  static Checker* checker = new Checker();
  return *checker;
}

size_t Checker::index_of(c10::Stream stream) {
  std::lock_guard guard(mutex_);
  auto [found, fresh] = indices_.try_emplace({stream.device_index(), stream.id()}, streams_.size());
  if (fresh) streams_.push_back({stream, Clock(streams_.size() + 1)});
  return found->second;
}

std::string Checker::name_of(size_t index) {
  std::lock_guard guard(mutex_);
  c10::Stream stream = streams_[index].stream;
  return stream.device().str() + " stream " + std::to_string(stream.id());
}

Clock& Checker::host_clock() {
  thread_local Clock clock;
  return order_by_process_ ? completed_ : clock;
}

bool Checker::before(const Access& access, const Clock& clock) {
  return access.time <= at(clock, access.stream);
}

uint64_t Checker::issue(c10::Stream stream, const std::string& name, const std::vector<Use>& uses) {
  std::lock_guard guard(mutex_);
  size_t index = index_of(stream);
  Clock& clock = streams_[index].clock;
  merge(clock, host_clock());
  clock[index] += 1;
  counts_.operators[name_of(index)] += 1;
  for (const Use& use : uses) check_use(use, index, name);
  return clock[index];
}

void Checker::missing_order(const Use& use, size_t stream, const std::string& name,
                            const Access& other, const char* kind) {
  violation(name + " on " + name_of(stream) + " " + (use.write ? "writes" : "reads") + " " +
            use.contents + " (" + std::to_string(use.block->bytes) + " bytes), which " +
            other.what + " on " + name_of(other.stream) + " " + kind +
            ": the former stream has not waited for that work of the latter");
}

void Checker::check_use(const Use& use, size_t stream, const std::string& name) {
  Block& block = *use.block;
  const Clock& clock = streams_[stream].clock;
  if (!before(block.written, clock)) {
    bool allocation = block.written.what == "the allocation";
    missing_order(use, stream, name, block.written,
                  allocation ? "may hand out again while earlier work there uses it" : "wrote");
  }
  Access access{stream, clock[stream], name};
  if (use.write) {
    for (const auto& [reader, read] : block.reads) {
      if (!before(read, clock)) missing_order(use, stream, name, read, "reads");
    }
    block.reads.clear();
    block.written = access;
  } else {
    block.reads[stream] = access;
  }
  block.last_uses[stream] = access;
  block.contents = use.contents;
}

void Checker::order(c10::Stream first, c10::Stream later) {
  std::lock_guard guard(mutex_);
  wait(later, clock_of(first));
}

void Checker::add_block(Block* block, const std::string& what) {
  if (block->bytes == 0) return;
  std::lock_guard guard(mutex_);
  block->serial = ++serials_;
  // An allocation may hand out what earlier work on its stream still uses.
  uint64_t now = streams_[block->allocated_on].clock[block->allocated_on];
  block->written = {block->allocated_on, block->is_pooled ? 0 : now, what};
  blocks_[block->data] = block;
  DeviceBytes& bytes = bytes_[block->device];
  bytes.now += static_cast<int64_t>(block->bytes);
  bytes.peak = std::max(bytes.peak, bytes.now);
}

void Checker::remove_block(Block* block) {
  if (block->bytes == 0) return;
  std::lock_guard guard(mutex_);
  blocks_.erase(block->data);
  bytes_[block->device].now -= static_cast<int64_t>(block->bytes);
  if (block->is_pooled) return;  // handed out to nobody else
  const Clock& clock = streams_[block->allocated_on].clock;
  for (const auto& [stream, use] : block->last_uses) {
    if (stream == block->allocated_on || block->recorded.count(stream) || before(use, clock) ||
        before(use, host_clock())) {
      continue;
    }
    violation("freeing " + block->contents + " (" + std::to_string(block->bytes) +
              " bytes) of " + name_of(block->allocated_on) + ", which " + use.what + " on " +
              name_of(stream) + " uses: that stream was not recorded for the memory, and the "
              "former has not waited for that work");
  }
}

bool Checker::drop_owner(Block* block) {
  std::lock_guard guard(mutex_);
  return --block->owners == 0;
}

void Checker::add_owner(Block* block) {
  std::lock_guard guard(mutex_);
  block->owners += 1;
}

bool Checker::has_one_owner(const Block& block) {
  std::lock_guard guard(mutex_);
  return block.owners == 1;
}

std::vector<Use> Checker::own(const std::vector<BlockReference>& blocks, const std::string& name) {
  std::lock_guard guard(mutex_);
  std::vector<Use> uses;
  for (const BlockReference& reference : blocks) {
    auto found = blocks_.find(reference.data);
    // Another block at the address will do, as it does for a GPU: whoever replays may have looked.
    if (found != blocks_.end() && found->second->bytes >= reference.bytes) {
      uses.push_back({found->second, reference.write, reference.contents});
      continue;
    }
    violation(name + " was captured with " + reference.operator_name + ", which " +
              (reference.write ? "writes " : "reads ") + reference.contents + " (" +
              std::to_string(reference.bytes) + " bytes): that memory has been freed since");
  }
  if (uses.size() < blocks.size()) return {};
  for (const Use& use : uses) use.block->owners += 1;
  return uses;
}

Block* Checker::find_block(const void* pointer) {
  std::lock_guard guard(mutex_);
  const char* address = static_cast<const char*>(pointer);
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return nullptr;
  Block* block = std::prev(after)->second;
  return address < block->data + block->bytes ? block : nullptr;
}

void Checker::record_block(const void* pointer, c10::Stream stream) {
  std::lock_guard guard(mutex_);
  counts_.recorded_streams += 1;
  if (Block* block = find_block(pointer)) block->recorded.insert(index_of(stream));
}

DeviceBytes Checker::bytes(c10::DeviceIndex device) {
  std::lock_guard guard(mutex_);
  return bytes_[device];
}

void Checker::reset_peak(c10::DeviceIndex device) {
  std::lock_guard guard(mutex_);
  bytes_[device].peak = bytes_[device].now;
}

Clock Checker::clock_of(c10::Stream stream) {
  std::lock_guard guard(mutex_);
  size_t index = index_of(stream);
  Clock clock = streams_[index].clock;
  merge(clock, host_clock());
  return clock;
}

void Checker::wait(c10::Stream stream, const Clock& clock) {
  std::lock_guard guard(mutex_);
  merge(streams_[index_of(stream)].clock, clock);
}

void Checker::host_reaches(const Clock& clock) {
  std::lock_guard guard(mutex_);
  merge(host_clock(), clock);
  merge(completed_, clock);
  std::vector<PendingCopy> left;
  for (PendingCopy& copy : pending_) {
    if (copy.time <= at(clock, copy.stream)) {
      copy.finish();
    } else {
      left.push_back(std::move(copy));
    }
  }
  pending_ = std::move(left);
}

bool Checker::query(const Clock& clock) {
  std::lock_guard guard(mutex_);
  bool ready = true;
  for (PendingCopy& copy : pending_) {
    if (copy.time <= at(clock, copy.stream) && copy.polls_left > 0) {
      copy.polls_left -= 1;
      ready = false;
    }
  }
  if (ready) host_reaches(clock);
  return ready;
}

void Checker::synchronize_stream(c10::Stream stream) {
  std::lock_guard guard(mutex_);
  counts_.stream_synchronizations[thread_name()] += 1;
  host_reaches(clock_of(stream));
}

void Checker::synchronize_device(c10::DeviceIndex device) {
  std::lock_guard guard(mutex_);
  counts_.device_synchronizations += 1;
  Clock clock;
  for (const StreamState& state : streams_) {
    if (state.stream.device_index() == device) merge(clock, state.clock);
  }
  host_reaches(clock);
}

bool Checker::host_has_seen(size_t stream, uint64_t time) {
  std::lock_guard guard(mutex_);
  return time <= at(host_clock(), stream);
}

bool Checker::has_been_completed(size_t stream, uint64_t time) {
  std::lock_guard guard(mutex_);
  return time <= at(completed_, stream);
}

void Checker::add_pending(c10::Stream stream, uint64_t time, std::function<void()> finish) {
  std::lock_guard guard(mutex_);
  pending_.push_back({index_of(stream), time, event_delay_, std::move(finish)});
}

void Checker::violation(const std::string& text) {
  std::lock_guard guard(mutex_);
  violations_.push_back(text + " [thread " + thread_name() + "]");
  report(violations_.back());
}

std::vector<std::string> Checker::violations() {
  std::lock_guard guard(mutex_);
  return violations_;
}

Counts Checker::counts() {
  std::lock_guard guard(mutex_);
  return counts_;
}

void Checker::count(const std::function<void(Counts&)>& change) {
  std::lock_guard guard(mutex_);
  change(counts_);
}

void Checker::reset() {
  std::lock_guard guard(mutex_);
  violations_.clear();
  counts_ = Counts();
}

void Checker::set_event_delay(int polls) {
  std::lock_guard guard(mutex_);
  event_delay_ = polls;
  for (PendingCopy& copy : pending_) copy.polls_left = std::min(copy.polls_left, polls);
}

void Checker::set_host_order(bool by_process) {
  std::lock_guard guard(mutex_);
  order_by_process_ = by_process;
}

}  // namespace simulated_gpu
