// A record's execution on the worker's timeline, where that is on.
#pragma once

#include "profiling/record_event.h"
#include "worker/state.h"

namespace dtorch {

class RecordNote {
 public:
  RecordNote(WorkerState& state, uint16_t flags) {
    if (C10_LIKELY(!state.timeline.is_on())) return;
    state.flags = flags;
    state.goes_on = false;
    number_ = state.record;
    operators_ = state.num_operators;
    failures_ = state.num_failures;
    began_ = steady_ns();
  }

  // It has run. `record` must be well-formed.
  void end(WorkerState& state, const uint32_t* record) {
    if (C10_UNLIKELY(began_ != 0) && !state.goes_on) add(state, record);
  }

 private:
  void add(WorkerState& state, const uint32_t* record) {
    Event event;
    event.end = steady_ns();
    event.begin = std::max(began_, state.resumed);  // it may have waited for what it reads
    event.record = number_;
    event.flags = state.flags;
    if (!describe_record(record, &event)) return;
    if (state.num_failures != failures_) {
      event.flags |= Event::kFailed;
    } else if (event.kind == static_cast<uint16_t>(Kind::kOperator) && state.num_operators == operators_) {
      return;  // for other workers, or its inputs have failed
    }
    state.timeline.note(event);
  }

  int64_t began_ = 0;
  uint64_t number_ = 0, operators_ = 0, failures_ = 0;
};

}  // namespace dtorch
