// Writing the records of one call.
#pragma once

#include "capture/call_entry.h"
#include "capture/record_queue.h"

namespace dtorch {

using Slots = c10::SmallVector<uint32_t, 8>;

// Writes the records of one call; the stream lock is held. outputs: takes the slots of what it makes.
// Returns whether the first input was moved: a view of it is then apart from it.
bool emit_call(RecordQueue& queue, OperatorInfo& info, const CallEntry& entry, const CallKey& key,
               const c10::IValue* arguments, uint32_t site, const c10::IValue& generator_pair,
               Slots* outputs);

}  // namespace dtorch
