#pragma once

#include <sys/prctl.h>
#include <time.h>

#include <cstdint>

namespace dtorch {

// Sleeps for about this long. Linux rounds a thread's sleeps up by its timer slack, 50
// microseconds unless it says otherwise, which is longer than most waits here.
inline void sleep_briefly(int64_t microseconds) {
  static thread_local const int precise = prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
  (void)precise;
  const timespec duration{0, microseconds * 1000};
  nanosleep(&duration, nullptr);
}

}  // namespace dtorch
