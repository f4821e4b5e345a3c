#pragma once

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <chrono>
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

// Polls, yields, then sleeps for a part of the time waited so far: a short wait ends soon, and
// a long one does not disturb the threads that compute.
class Backoff {
 public:
  explicit Backoff(int spins) : spins_(spins) {}

  void pause() {
    if (++step_ < spins_) {
      sched_yield();
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    if (step_ == spins_) began_ = now;
    const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(now - began_).count();
    sleep_briefly(std::clamp<int64_t>(waited / 8, 20, 2000));
  }

 private:
  int spins_, step_ = 0;
  std::chrono::steady_clock::time_point began_;
};

}  // namespace dtorch
