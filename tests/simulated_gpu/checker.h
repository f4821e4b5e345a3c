// Vector clocks of streams and host threads, and what each block of memory was last used by.
#pragma once

#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace simulated_gpu {

// How much of each stream's work has been seen, by the stream's index.
using Clock = std::vector<uint64_t>;

void merge(Clock& into, const Clock& from);

struct Access {
  size_t stream = 0;
  uint64_t time = 0;  // 0: before everything
  std::string what;
};

// Device memory that one allocation, or one kernel's result, holds.
struct Block {
  char* data = nullptr;
  size_t bytes = 0;
  c10::DeviceIndex device = 0;
  size_t allocated_on = 0;
  std::string contents;  // dtype and sizes of the tensor that used it last
  Access written;
  std::map<size_t, Access> reads;      // by stream, since the last write
  std::map<size_t, Access> last_uses;  // by stream
  std::set<size_t> recorded;           // streams that recordDataPtrOnStream named
  c10::Storage adopted;                // the result of a CPU kernel that owns the memory
  uint64_t serial = 0;                 // no other block has, or will have
  int owners = 1;                      // the tensors' storages, graphs' pools, and replays
  bool is_pooled = false;              // in use until the last owner is gone
};

struct Use {
  Block* block;
  bool write;
  std::string contents;
};

// A block that a graph uses, which may be gone when the graph is replayed.
struct BlockReference {
  char* data;
  size_t bytes;
  uint64_t serial;
  bool write;
  std::string contents;
  std::string operator_name;
};

// A copy between host and device that the host must not take for finished yet.
struct PendingCopy {
  size_t stream;
  uint64_t time;
  int polls_left;  // queries that will say "not ready"
  std::function<void()> finish;
};

struct Counts {
  int64_t device_synchronizations = 0;
  std::map<std::string, int64_t> stream_synchronizations;  // by host thread
  std::map<std::string, int64_t> event_synchronizations;   // by host thread
  int64_t blocking_copies = 0;
  int64_t recorded_streams = 0;
  int64_t events = 0;
  int64_t emptied_caches = 0;
  std::map<std::string, int64_t> operators;  // by stream
};

// A device's memory in use, and the most since the start or reset_peak().
struct DeviceBytes {
  int64_t now = 0;
  int64_t peak = 0;
};

// All state of the simulation; each function takes the lock itself.
class Checker {
 public:
  // Never destroyed: memory is freed, and streams are used, until the process is gone.
  static Checker& get();

  // No other thread issues or waits while this is held.
  std::unique_lock<std::recursive_mutex> hold() { return std::unique_lock(mutex_); }

  size_t index_of(c10::Stream stream);
  std::string name_of(size_t stream);

  // An operator was issued on a stream; its time there.
  uint64_t issue(c10::Stream stream, const std::string& name, const std::vector<Use>& uses);
  // Everything issued so far on `first` comes before what is issued on `later` from now on.
  void order(c10::Stream first, c10::Stream later);

  void add_block(Block* block, const std::string& what);
  void remove_block(Block* block);
  // One owner less; true for the last, who frees the memory.
  bool drop_owner(Block* block);
  void add_owner(Block* block);
  bool has_one_owner(const Block& block);
  // The caller becomes an owner of all the blocks; or, if one is gone, of none: that is a violation.
  std::vector<Use> own(const std::vector<BlockReference>& blocks, const std::string& name);
  Block* find_block(const void* pointer);
  void record_block(const void* pointer, c10::Stream stream);
  DeviceBytes bytes(c10::DeviceIndex device);
  void reset_peak(c10::DeviceIndex device);

  Clock clock_of(c10::Stream stream);
  void wait(c10::Stream stream, const Clock& clock);
  void host_reaches(const Clock& clock);
  bool query(const Clock& clock);  // false: a pending copy is not ready; true orders the host too
  void synchronize_stream(c10::Stream stream);
  void synchronize_device(c10::DeviceIndex device);
  bool host_has_seen(size_t stream, uint64_t time);       // this thread
  bool has_been_completed(size_t stream, uint64_t time);  // any thread
  void add_pending(c10::Stream stream, uint64_t time, std::function<void()> finish);

  void violation(const std::string& text);
  std::vector<std::string> violations();
  Counts counts();
  void count(const std::function<void(Counts&)>& change);
  void reset();
  void set_event_delay(int polls);
  void set_host_order(bool by_process);

 private:
  struct StreamState {
    c10::Stream stream;
    Clock clock;
  };

  Clock& host_clock();
  bool before(const Access& access, const Clock& clock);
  void check_use(const Use& use, size_t stream, const std::string& name);
  void missing_order(const Use& use, size_t stream, const std::string& name, const Access& other,
                     const char* kind);

  std::recursive_mutex mutex_;
  std::vector<StreamState> streams_;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, size_t> indices_;
  std::map<const char*, Block*> blocks_;
  std::map<c10::DeviceIndex, DeviceBytes> bytes_;
  std::vector<PendingCopy> pending_;
  std::vector<std::string> violations_;
  Counts counts_;
  Clock completed_;
  uint64_t serials_ = 0;
  int event_delay_ = 2;
  bool order_by_process_ = false;
};

// The calling thread's, for people.
std::string thread_name();

}  // namespace simulated_gpu
