// Recognizes what the program has done before, and has workers replay it.
//
// Records come in as the client wrote them. They are cut into windows: at each read or sync, at
// the end of each step, else where records say so by themselves. A window that comes a second time
// becomes a plan, which the workers are told; from then on they are only told to run it, with what
// has changed. While the program follows a plan, what it has done so far is replayed whenever
// workers want work, so following costs no time; where it leaves the plan, its records are sent as
// they are.
//
// That cuts between windows depend on the records alone, and so fall alike wherever the same
// records come again, is the idea of content-defined chunking (Muthitacharoen, Chen and Mazieres, A
// low-bandwidth network file system, SOSP 2001).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "capture/record_queue.h"
#include "controller/plan.h"
#include "profiling/timeline.h"

namespace dtorch {

struct TraceCounters {
  uint64_t windows = 0;           // that came to an end
  uint64_t plans = 0;             // told to the workers
  uint64_t replays = 0;           // windows that followed a plan from a beginning to its end
  uint64_t replayed_records = 0;
  uint64_t departures = 0;        // from a plan before its end
};

class Tracer {
 public:
  struct Sender {
    void* self;
    // program_bytes: of the records that the batch stands for. communicates: workers may wait for
    // each other in it.
    void (*send)(void* self, const Batch* batch, uint64_t program_bytes, bool communicates);
    // Has another graph's records up to this number be sent, at least.
    void (*reach)(void* self, uint32_t graph, uint64_t records);
  };

  // for_graphs: workers run parts of plans as graphs of their devices.
  Tracer(const Sender& sender, RecordQueue& queue, bool enabled, bool for_graphs)
      : sender_(sender), queue_(queue), enabled_(enabled), for_graphs_(for_graphs) {}

  // Sends what `batch` says, but for what waits for what follows. are_fed: workers have enough to do;
  // all that follows a plan waits then, since they can do more with a larger part of it.
  void take(const Batch& batch, bool are_fed);
  // Sends what waits, but for what waits for what follows.
  void feed();
  // Sends what waits.
  void release();
  bool is_holding() const { return holding_; }

  // A window that has become a plan, for whoever may find a better way to run it.
  struct NewPlan {
    uint32_t number = 0;
    std::vector<uint32_t> words;
  };
  bool take_new_plan(NewPlan* plan);
  // Puts other records in the place of some of a plan's, from its next run on; see Plan::rewrite.
  struct Rewrite {
    uint32_t number;  // of the plan
    uint32_t num_own_slots;
    std::vector<uint32_t> operators, regions;
  };
  void rewrite(const Rewrite& rewrite);

  const TraceCounters& counters() const { return counters_; }
  // What is sent belongs there too.
  Timeline& timeline() { return timeline_; }

 private:
  static constexpr uint32_t kNoPlan = ~0u;

  // Records of the batch at hand that are sent as they are.
  struct Plain {
    const uint32_t* begin = nullptr;
    uint32_t count = 0;
    bool communicates = false;
  };

  void take_record(const uint32_t* record);
  void pass(const uint32_t* record, Kind kind);
  bool follow(const uint32_t* record);
  std::vector<uint32_t> starting_with(const uint32_t* record) const;
  std::vector<uint32_t> successors() const;
  bool begin_plan(const uint32_t* record);
  bool switch_plan(const uint32_t* record);
  void finish_plan();
  void leave_plan();
  void stop_following();
  void learn(const uint32_t* record);
  void finish_window();
  void note_successor(uint32_t number);
  bool is_loop() const;
  void choose_cut();
  uint32_t make_plan();
  void forget_plan(uint32_t number);

  void send_plain(const uint32_t* end);
  void send_replay(uint32_t last);
  void note_holding();
  bool take_own_slots(std::vector<uint32_t>* slots);
  void send_moves(const Plan::Moves& moves);
  void send_message(const std::vector<uint32_t>& message, uint32_t records, uint64_t program_bytes,
                    bool communicates = false);
  // An event of the window that has just ended, or of the moment.
  void note_window(ControllerEvent kind, uint32_t records, uint32_t plan);
  void note_now(ControllerEvent kind, uint32_t records, uint32_t plan);

  const Sender sender_;
  RecordQueue& queue_;
  const bool enabled_, for_graphs_;
  TraceCounters counters_;
  Timeline timeline_;
  int64_t window_began_ = 0;  // while the timeline is on

  const Batch* batch_ = nullptr;
  uint64_t record_number_ = 0;  // of the program, of the record at hand
  Plain plain_;
  uint64_t unsent_ = 0;         // number of the first record that no batch has had yet

  // What is learnt of the window that has begun.
  Window window_;
  std::vector<uint64_t> tokens_;
  bool can_be_plan_ = true;
  bool at_beginning_ = true;     // of a window
  std::unordered_map<uint64_t, uint32_t> seen_;  // hashes of windows -> plan
  std::unordered_set<uint64_t> cuts_;  // tokens of records that end a window

  std::unordered_map<uint32_t, std::unique_ptr<Plan>> plans_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> by_first_;  // token of a first record -> plans
  uint32_t next_number_ = 0;
  size_t num_words_ = 0;  // of all plans
  std::vector<uint32_t> own_slots_;  // those of plans that are gone
  uint64_t clock_ = 0;

  Plan* following_ = nullptr;
  std::vector<Batch> held_;  // the memory of what following_ has matched
  std::atomic<bool> holding_{false};
  std::deque<NewPlan> new_plans_;
  // Those that wait for the end of a run.
  std::vector<Rewrite> rewrites_;
  uint32_t previous_ = kNoPlan;  // the plan of the window before
  uint64_t previous_hash_ = 0;   // of that window, where it was no plan's or has just become one
};

}  // namespace dtorch
