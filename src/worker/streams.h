// Streams of a graph: threads that run independent branches of a plan beside each other.
//
// Which operator runs where is in its OperatorAssignInfo, by which the policy of the planner
// (dtorch_mpi/passes/assignment.py) divides stretches of a plan. What has no place in such a section
// runs on stream 0, the graph's own thread, behind all that was issued before.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "capture/capture.h"
#include "capture/resize_warnings.h"
#include "worker/bound_operator.h"
#include "worker/record_note.h"

namespace dtorch {

class StreamThreads {
 public:
  ~StreamThreads() {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  // Runs work(0) here and work(1) to work(count - 1) in threads of their own, all at once.
  void run(uint32_t count, const std::function<void(uint32_t)>& work) {
    while (threads_.size() + 1 < count) {
      threads_.emplace_back([this, stream = static_cast<uint32_t>(threads_.size() + 1),
                             operator_threads = at::get_num_threads()] {
        loop(stream, operator_threads);
      });
    }
    {
      std::lock_guard<std::mutex> guard(mutex_);
      work_ = &work;
      count_ = count;
      left_.store(count - 1, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
    }
    changed_.notify_all();
    work(0);
    while (left_.load(std::memory_order_acquire) > 0) sched_yield();
  }

 private:
  static constexpr int kSpins = 200;

  void loop(uint32_t stream, int operator_threads) {
    set_executes_records(true);
    at::set_num_threads(operator_threads);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    SilentResizing silent;
    for (uint64_t seen = 0;;) {
      for (int i = 0; i < kSpins && round_.load(std::memory_order_acquire) == seen; ++i) sched_yield();
      std::unique_lock<std::mutex> guard(mutex_);
      changed_.wait(guard, [&] { return is_over_ || round_.load(std::memory_order_relaxed) != seen; });
      if (is_over_) return;
      seen = round_.load(std::memory_order_relaxed);
      const auto* work = stream < count_ ? work_ : nullptr;
      guard.unlock();
      if (work == nullptr) continue;
      (*work)(stream);
      left_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(uint32_t)>* work_ = nullptr;
  uint32_t count_ = 0;
  bool is_over_ = false;
  std::atomic<uint64_t> round_{0};
  std::atomic<uint32_t> left_{0};
  std::vector<std::thread> threads_;
};

// One run of a section of a plan on several streams.
class SectionRun {
 public:
  SectionRun(WorkerState& state, WorkerPlan& plan, const Section& section)
      : state_(state), plan_(plan), stretch_(plan.stretch_of(section.first)), section_(section),
        first_maker_(state.maker + 1), events_(section.operators.size()) {}

  // Whether each record can run beside others: bound, with a value in all that it reads.
  bool is_possible() {
    if (!state_.spoiled.empty() || !state_.pending.empty()) return false;
    const auto has_value = [&](uint32_t tensor) {
      const uint32_t slot = plan_.slots[tensor];
      return slot < state_.slots.size() && state_.slots[slot].state == SlotEntry::State::kTensor;
    };
    if (!std::ranges::all_of(section_.inputs, has_value)) return false;
    for (uint32_t tensor : section_.outputs) state_.slot(plan_.slots[tensor]);  // room for all
    for (uint32_t i = 0; i < section_.operators.size(); ++i) {
      if (kind_of(i) != Kind::kOperator) continue;
      auto& bound = stretch_.operators[record(i)];
      if (bound.state == BoundOperator::State::kStale) bind_operator(state_, stretch_, record(i), &bound);
      if (bound.state != BoundOperator::State::kBound) return false;
      if (state_.op(words_of(i)[2]).users) return false;
    }
    return true;
  }

  void run() {
    if (!state_.streams) state_.streams = std::make_shared<StreamThreads>();
    std::vector<Stream> streams(section_.num_streams);
    for (auto& stream : streams) stream.notes = state_.timeline.is_on();
    state_.streams->run(section_.num_streams, [&](uint32_t number) { run_stream(number, &streams[number]); });
    state_.maker += section_.operators.size();
    for (auto& stream : streams) {
      state_.num_operators += stream.num_operators;
      for (const auto& event : stream.events) state_.timeline.note(event);
    }
  }

  // Whether a record has run. One that failed has not, nor has what depends on it.
  bool has_run(uint32_t i) const { return events_[i].load(std::memory_order_relaxed) == kRecorded; }

 private:
  enum : uint8_t { kNotYet, kRecorded, kLeftOut };
  struct Stream {
    Stack stack;
    uint64_t num_operators = 0;
    bool notes = false;
    std::vector<Event> events;
  };

  uint32_t record(uint32_t i) const { return section_.first.record + i; }
  const uint32_t* words_of(uint32_t i) const {
    return stretch_.window.words().data() + stretch_.window.offset(record(i));
  }
  Kind kind_of(uint32_t i) const { return static_cast<Kind>(words_of(i)[1] & 0xffff); }

  // Behind a record that is left out a stream leaves all out: any of them may need it.
  void run_stream(uint32_t number, Stream* stream) {
    bool can_run = true;
    for (uint32_t i = 0; i < section_.operators.size(); ++i) {
      const auto& assigned = section_.operators[i];
      if (assigned.stream != number) continue;
      for (uint32_t other : assigned.waits) can_run = can_run && wait(other);
      can_run = can_run && run_one(i, stream);
      events_[i].store(can_run ? kRecorded : kLeftOut, std::memory_order_release);
      stream->stack.clear();
    }
  }

  bool wait(uint32_t other) {
    uint8_t event;
    while ((event = events_[other].load(std::memory_order_acquire)) == kNotYet) sched_yield();
    return event == kRecorded;
  }

  bool run_one(uint32_t i, Stream* stream) {
    const int64_t began = stream->notes ? steady_ns() : 0;
    const uint32_t* words = words_of(i);
    state_.activity->step();
    switch (kind_of(i)) {
      case Kind::kFree: free_slot(state_, slot_at(i, 2)); return true;
      case Kind::kMoveSlots:
        for (uint32_t w = kHeaderWords; w < words[0]; w += 2) {
          state_.slots[slot_at(i, w + 1)] = std::move(state_.slots[slot_at(i, w)]);
          state_.slots[slot_at(i, w)] = SlotEntry();
        }
        return true;
      default: break;
    }
    const auto& bound = stretch_.operators[record(i)];
    if (!take_tensors(state_, plan_, bound, &stream->stack)) return false;
    const auto& op = state_.op(words[2]);
    try {
      if (!op.unchecked.empty()) op.unchecked.check(stream->stack);
      op.handle->callBoxed(stream->stack);
      put_results(state_, plan_, bound, stream->stack, first_maker_ + i);
    } catch (const std::exception&) {
      return false;  // it runs again by itself, and its error is told
    }
    ++stream->num_operators;
    if (stream->notes) note(i, began, stream);
    return true;
  }

  void note(uint32_t i, int64_t began, Stream* stream) {
    Event event;
    event.begin = began;
    event.end = steady_ns();
    event.record = state_.record;
    event.flags = Event::kReplayed | (section_.first.region != 0 ? Event::kRewritten : 0);
    event.thread = section_.operators[i].stream;
    if (describe_record(words_of(i), &event)) stream->events.push_back(event);
  }

  uint32_t slot_at(uint32_t i, uint32_t word) const {
    return plan_.slots[stretch_.tensors[stretch_.window.tensor(stretch_.window.offset(record(i)) + word)]];
  }

  WorkerState& state_;
  WorkerPlan& plan_;
  Stretch& stretch_;
  const Section& section_;
  const uint64_t first_maker_;
  std::vector<std::atomic<uint8_t>> events_;  // one a record
};

// The section that begins at a place, or null.
inline const Section* section_at(const WorkerPlan& plan, const Place& place) {
  const auto found = std::ranges::lower_bound(plan.sections, plan.position(place), {}, [&](const Section& section) {
    return plan.position(section.first);
  });
  if (found == plan.sections.end() || found->first.region != place.region || found->first.record != place.record) {
    return nullptr;
  }
  return &*found;
}

}  // namespace dtorch
