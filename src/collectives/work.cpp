#include "collectives/work.h"

#include <sched.h>

#include <algorithm>

#include <c10/util/Exception.h>

namespace dtorch {
namespace {

constexpr int kLooks = 64;
constexpr int kYields = 200;
constexpr std::chrono::microseconds kLongestNap{1000};

std::atomic<int64_t> delay_us{0};

}  // namespace

bool Patience::spin() {
  if (turns_ < kLooks) {
    ++turns_;
    return true;
  }
  if (turns_ < kLooks + kYields) {
    ++turns_;
    sched_yield();
    return true;
  }
  return false;
}

std::chrono::microseconds Patience::nap() {
  const auto now = nap_;
  nap_ = std::min(kLongestNap, nap_ * 9 / 8);
  return now;
}

std::exception_ptr backend_error(const Caller& caller, const std::string& what) {
  return std::make_exception_ptr(c10::DistBackendError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, caller.text() + what));
}

PolledWork::PolledWork(Request&& request)
    : Work(request.caller.rank, request.op_type),
      request_(std::move(request)),
      results_(std::move(request_.results)),
      not_before_(std::chrono::steady_clock::now() + std::chrono::microseconds(delay_us.load())) {}

void delay_collectives(std::chrono::microseconds delay) { delay_us = delay.count(); }

bool PolledWork::isSuccess() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !exception_;
}

std::exception_ptr PolledWork::exception() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return exception_;
}

bool PolledWork::ended() const { return ended_.load(std::memory_order_acquire); }

bool PolledWork::wait(std::chrono::milliseconds timeout) {
  const auto limit = timeout == kNoTimeout ? request_.timeout : timeout;
  const auto start = std::chrono::steady_clock::now();
  Patience patience;
  while (!look()) {
    if (patience.spin()) continue;
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
        start + limit - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      std::rethrow_exception(backend_error(
          request_.caller, "timed out after " + std::to_string(limit.count()) +
                               " ms: not every member has taken part. It goes on, and can be "
                               "waited for again"));
    }
    sleep(std::min(left, patience.nap()));
  }
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> PolledWork::getFuture() {
  bool had_ended = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    had_ended = completed_;
  }
  if (had_ended) {
    complete_future(exception());
  } else {
    watch();
  }
  return future_;
}

void PolledWork::complete_future(const std::exception_ptr& error) {
  if (error) {
    future_->setError(error);
  } else {
    future_->markCompleted(c10::IValue(results_));
  }
}

void PolledWork::end(std::exception_ptr error) {
  try {
    if (!error) request_.finish();
  } catch (...) {
    error = std::current_exception();
  }
  bool has_future = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    exception_ = error;
    completed_ = true;
    has_future = static_cast<bool>(future_);
    ended_.store(true, std::memory_order_release);
  }
  if (has_future) complete_future(error);
}

}  // namespace dtorch
