// Tensors of one graph that another uses, and the order of what graphs do with memory that they
// share.
//
// Each graph has a queue of records and a thread on every worker, so nothing but what is said here
// orders two of them. The stream lock is one for all graphs, and gives the order in which the
// program issued its records; a record waits for those of other graphs, issued before, that wrote
// what it reads, or read or wrote what it writes. Waits so only point back in that order, and no
// two graphs can wait for each other.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "capture/record_queue.h"
#include "tensor/slot.h"

namespace dtorch {

// Hold the stream lock.
class BetweenGraphs {
 public:
  static BetweenGraphs& get();

  // Whether there is any graph beside the main one.
  bool is_active() const { return is_active_; }
  // A graph of that number begins; 0 is the main one, which begins a job.
  void begin(uint32_t graph);

  // Before records of `queue` that use a tensor: has its workers know it, and wait for what other
  // graphs do with its memory. Returns the slot by which they know it.
  uint32_t use(RecordQueue& queue, Slot& slot, bool writes);
  // Behind these records.
  void note(RecordQueue& queue);
  // The slot by which a graph's workers know a tensor that it has used.
  static uint32_t slot_in(const RecordQueue& queue, const Slot& slot);
  // A view of `base` was made.
  void add_view(const Slot& base, Slot& view);
  // The slot is about to go.
  void forget(const Slot& slot);

 private:
  // Records of a graph before this position.
  struct Touch {
    RecordQueue* queue = nullptr;
    uint32_t generation = 0;
    uint64_t position = 0;

    bool is_over() const {
      return queue == nullptr || queue->generation() != generation || queue->executed() >= position;
    }
  };
  // Memory that more than one graph has used.
  struct Memory {
    size_t num_slots = 0;  // that are known to be views of it
    Touch written;
    std::vector<Touch> read;  // since then, the last of each graph

    bool is_idle() const;
  };

  void wait(RecordQueue& queue, const Touch& touch);
  // The slot of another graph's tensor here, if it was brought; else null.
  static const Import* import_in(const RecordQueue& queue, const Slot& slot);
  uint32_t bring(RecordQueue& queue, Slot& slot);
  void track(Memory& memory, Slot& slot);
  void sweep();

  bool is_active_ = false;
  uint64_t next_ticket_ = 0;
  std::unordered_map<uint64_t, Memory> memories_;
  std::vector<uint64_t> leaving_;  // whose slots are gone, and whose records may still have to run
  std::vector<std::pair<uint64_t, bool>> noted_;  // memory that is being used, and whether written
  // (waiting graph, graph) -> the position that has been waited for
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> waited_;
  // How many graphs of each number the job has had.
  std::array<uint32_t, kMaxGraphs> begun_{};
};

}  // namespace dtorch
