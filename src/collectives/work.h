#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "collectives/request.h"

namespace dtorch {

// What a waiting member does between two looks, so that it answers fast and never burns a
// core: a few looks in a row, then sched_yield, then sleeps that grow to a millisecond and are
// about a ninth of the time waited so far.
class Patience {
 public:
  // Spin or yield; false once it is time to sleep.
  bool spin();
  // How long to sleep this time.
  std::chrono::microseconds nap();

 private:
  int turns_ = 0;
  std::chrono::microseconds nap_{20};
};

// From now on no collective ends sooner than this after its beginning: for tests and benchmarks of
// what goes on meanwhile.
void delay_collectives(std::chrono::microseconds delay);

// A c10d Work that is complete once poll() says so. wait() raises DistBackendError when the
// collective failed, and when `timeout` (0: the request's own) passes first; the collective
// then goes on and can be waited for again.
class PolledWork : public c10d::Work {
 public:
  explicit PolledWork(Request&& request);

  bool isCompleted() override { return look(); }
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override { return results_; }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Of the output tensors. Completed by whichever thread completes the collective.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 protected:
  // Move the collective on, without waiting; true once it has ended, well or not.
  virtual bool poll() = 0;
  // Wait for a change for at most `nap`.
  virtual void sleep(std::chrono::microseconds nap) = 0;
  // Called once, when a future that is not complete yet is asked for.
  virtual void watch() {}
  // End the collective: bring the results to the caller's tensors, or keep the error.
  void end(std::exception_ptr error = nullptr);
  bool ended() const;

  Request request_;

 private:
  void complete_future(const std::exception_ptr& error);
  bool look() { return std::chrono::steady_clock::now() >= not_before_ && poll(); }

  // Kept apart from the request, which lets go of all memory when the collective ends.
  const std::vector<at::Tensor> results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  const std::chrono::steady_clock::time_point not_before_;
  // Mirrors c10d::Work::completed_ for the lock-free look.
  std::atomic<bool> ended_{false};
};

// A DistBackendError with the caller in front.
std::exception_ptr backend_error(const Caller& caller, const std::string& what);

}  // namespace dtorch
