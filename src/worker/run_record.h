// One record, whatever comes of it: what is raised in it becomes a failure here.
#pragma once

#include "worker/replay.h"

namespace dtorch {

// What tells records apart; `worker` is its own.
using ExecuteRecord = void (*)(void* worker, Reader& reader);

// Runs one record and returns its length. A malformed one becomes a failure; where not even the next
// one can be found, 0.
inline uint32_t run_record(WorkerState& state, void* worker, const uint32_t* at, const uint32_t* end,
                           ExecuteRecord execute, uint16_t flags) {
  uint32_t words = 0;
  ++state.maker;
  RecordNote note(state, flags);
  try {
    Reader reader = Reader::record(at, end);
    words = reader.words();
    execute(worker, reader);
  } catch (const std::exception& error) {
    state.stack.clear();
    make_failure(state, message_of(error));
    if (words == 0) state.broken = message_of(error);
    return words;
  }
  note.end(state, at);
  return words;
}

// Runs a plan, of which some records are no operators.
inline void run_plan(WorkerState& state, Reader& reader, uint32_t number, void* worker, ExecuteRecord execute) {
  replay(state, reader, number, [&](const std::vector<uint32_t>& record, uint16_t flags) {
    run_record(state, worker, record.data(), record.data() + record.size(), execute, flags);
  });
}

[[noreturn]] inline void refuse_record() { Reader::fail("a record of an unknown kind"); }

}  // namespace dtorch
