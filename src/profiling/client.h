// The client's timeline: the records that the program issues.
#pragma once

#include "profiling/timeline.h"

namespace dtorch {

// Hold the stream lock to use it, but for is_on().
extern Timeline& client_timeline;

// This thread begins what becomes one record or more.
void begin_issue();
// The record is complete, and about to be seen by the controller. number: among the program's.
void note_issue(const uint32_t* record, uint64_t number);

}  // namespace dtorch
